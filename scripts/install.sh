#!/bin/sh
# Installs berth, the command-line client, on Linux or macOS:
#
#   curl -fsSL https://github.com/berth-cloud/berth/releases/latest/download/install.sh | sh
#
# It downloads the program for this machine, compares it with the release's list of
# checksums, and puts it into /usr/local/bin if that can be written to, otherwise into
# ~/.local/bin. Settings (environment):
#   BERTH_VERSION      a release, such as v0.1.0 (default: the latest)
#   BERTH_INSTALL_DIR  another directory
#   BERTH_RELEASES     another address of releases, for mirrors
set -eu

die() { printf 'install berth: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# Everything is in functions, so that a download that was cut off runs nothing.
fetch() { # URL FILE
  if have curl; then
    curl -fsSL --retry 3 -o "$2" "$1" || return 1
  elif have wget; then
    wget -q -O "$2" "$1" || return 1
  else
    die "curl or wget is needed: install one of them"
  fi
}

checksum() { # FILE
  if have sha256sum; then
    sha256sum "$1" | cut -d ' ' -f 1
  elif have shasum; then
    shasum -a 256 "$1" | cut -d ' ' -f 1
  else
    die "sha256sum or shasum is needed to check the download"
  fi
}

main() {
  case $(uname -s) in
    Linux) os=linux ;;
    Darwin) os=darwin ;;
    *) die "there is no program for $(uname -s); build it from a clone: make build, which needs Go" ;;
  esac
  case $(uname -m) in
    x86_64 | amd64) arch=amd64 ;;
    aarch64 | arm64) arch=arm64 ;;
    *) die "there is no program for the processor $(uname -m)" ;;
  esac
  releases=${BERTH_RELEASES:-https://github.com/berth-cloud/berth/releases}
  if [ -n "${BERTH_VERSION:-}" ]; then
    from=$releases/download/$BERTH_VERSION
  else
    from=$releases/latest/download
  fi
  if [ -n "${BERTH_INSTALL_DIR:-}" ]; then
    dir=$BERTH_INSTALL_DIR
  elif [ -d /usr/local/bin ] && [ -w /usr/local/bin ]; then
    dir=/usr/local/bin
  else
    [ -n "${HOME:-}" ] || die "HOME is not set: say where to install with BERTH_INSTALL_DIR"
    dir=$HOME/.local/bin
  fi
  mkdir -p "$dir" || die "$dir cannot be created: choose another with BERTH_INSTALL_DIR"
  [ -w "$dir" ] || die "$dir cannot be written to: choose another with BERTH_INSTALL_DIR"

  name=berth_${os}_$arch.tar.gz
  # In the same directory, so that the program is replaced at once.
  tmp=$(mktemp -d "$dir/.berth-install.XXXXXX")
  trap 'rm -rf "$tmp"' EXIT
  trap 'exit 1' HUP INT TERM
  fetch "$from/SHA256SUMS" "$tmp/SHA256SUMS" || die "$from/SHA256SUMS could not be downloaded: check the network, and BERTH_VERSION if it is set"
  fetch "$from/$name" "$tmp/$name" || die "$from/$name could not be downloaded"
  want=$(awk -v name="$name" '$2 == name { print $1 }' "$tmp/SHA256SUMS")
  [ -n "$want" ] || die "the release's SHA256SUMS does not name $name: nothing was installed"
  got=$(checksum "$tmp/$name")
  [ "$got" = "$want" ] || die "the download has the SHA-256 $got, not $want: nothing was installed; try again, and if that stays so, tell the authors"
  tar -xzf "$tmp/$name" -C "$tmp" berth || die "$name could not be unpacked"
  chmod 755 "$tmp/berth"
  "$tmp/berth" version >/dev/null || die "the program does not run on this machine: nothing was installed"
  mv -f "$tmp/berth" "$dir/berth"

  printf 'berth is in %s/berth\n' "$dir"
  case :${PATH:-}: in
    *:"$dir":*) ;;
    *) printf 'That is not on your PATH; add it:  export PATH="%s:$PATH"\n' "$dir" ;;
  esac
  printf 'Sign in:  berth login --url https://berth.example.com\n'
}

main
