package build

import (
	"maps"
	"path/filepath"
	"strconv"
	"strings"
)

const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Environ is what is set for every command of an app that was built, below its own
// variables: where its programs are.
func (m Made) Environ(home string) map[string]string {
	path := append([]string{}, m.Path...)
	env := map[string]string{"HOME": home, "PATH": strings.Join(append(path, filepath.Join(home, ".local", "bin"), usualPath), ":")}
	if m.Venv != "" {
		env["VIRTUAL_ENV"] = m.Venv
	}
	return env
}

func (b *builder) base() map[string]string { return b.made.Environ(b.Home) }

// Ports are the only variables that an app is given beside its own, and over them.
func Ports(port int) map[string]string {
	return map[string]string{"PORT": strconv.Itoa(port), "HOST": "0.0.0.0"}
}

func ports(port int) map[string]string {
	if port == 0 {
		return map[string]string{"HOST": "0.0.0.0"}
	}
	return Ports(port)
}

// caches is where package managers keep what they have downloaded, and that they ask
// nothing and look for no news.
func (b *builder) caches() map[string]string {
	env := map[string]string{
		"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "npm_config_update_notifier": "false", "npm_config_fund": "false", "npm_config_audit": "false",
		"NO_UPDATE_NOTIFIER": "1", "COREPACK_ENABLE_DOWNLOAD_PROMPT": "0", "YARN_ENABLE_TELEMETRY": "0", "POETRY_VIRTUALENVS_CREATE": "false", "PIPENV_VERBOSITY": "-1",
		"UV_LINK_MODE": "copy", "CARGO_TERM_COLOR": "never", "NO_COLOR": "1",
		// Those that bring authorities of their own trust the guest's too, which may have
		// that of a proxy before the registries.
		"NODE_EXTRA_CA_CERTS": "/etc/ssl/certs/ca-certificates.crt", "DENO_TLS_CA_STORE": "system,mozilla",
	}
	maps.Copy(env, map[string]string{
		"npm_config_cache": b.cache("npm"), "npm_config_store_dir": b.cache("pnpm"), "YARN_CACHE_FOLDER": b.cache("yarn"), "BUN_INSTALL_CACHE_DIR": b.cache("bun"),
		"PIP_CACHE_DIR": b.cache("pip"), "UV_CACHE_DIR": b.cache("uv"), "GOMODCACHE": b.cache("go", "mod"), "GOCACHE": b.cache("go", "build"),
		"CARGO_HOME": b.cache("cargo"), "DENO_DIR": b.cache("deno"), "MISE_DATA_DIR": b.cache("mise"), "MISE_CACHE_DIR": b.cache("mise", "cache"),
	})
	return env
}

func (b *builder) cache(names ...string) string {
	return filepath.Join(append([]string{b.Cache}, names...)...)
}
