package app

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/webhook"
)

func TestGitURL(t *testing.T) {
	t.Parallel()
	for _, u := range []string{
		"https://github.com/a/b.git", "https://git.example.com:8443/a/b", "https://93.184.216.34/a", "https://[2606:2800:220:1:248:1893:25c8:1946]/a", "HTTPS://example.com/a",
	} {
		if err := validGitURL(u, false); err != nil {
			t.Errorf("%s: %v", u, err)
		}
	}
	for _, u := range []string{
		"", "http://example.com/a", "git://example.com/a", "ssh://git@example.com/a", "git@example.com:a/b", "file:///etc/passwd", "ext::sh -c id", "ext::https://x",
		"https://user@example.com/a", "https://user:secret@example.com/a", "https://:@example.com/a", "-uhttps://example.com/a", "--upload-pack=id", "https://exa mple.com/a", "https://example.com/a\nb",
		"https://example.com/a\x00", "https://example.com/a?b", "https://example.com/a?", "https://example.com/a#b", "https://example.com/a#", "https://example.com/", "https://example.com", "https:///a", "https:a",
		"https://localhost/a", "https://LOCALHOST./a", "https://a.localhost/a", "https://intranet/a", "https://127.0.0.1/a", "https://127.1/a", "https://0x7f000001/a", "https://2130706433/a", "https://0177.0.0.1/a",
		"https://10.1.2.3/a", "https://192.168.0.1/a", "https://169.254.169.254/latest", "https://[::1]/a", "https://[::ffff:127.0.0.1]/a", "https://[fe80::1%25eth0]/a", "https://[fd00::1]/a", "https://100.64.0.1/a",
		"https://metadata.google.internal/a", "https://example.com\\@127.0.0.1/a", "https://ex%61mple.com:99999/a\xff", "https://" + strings.Repeat("a", 2048) + ".com/a",
	} {
		err := validGitURL(u, false)
		if err == nil {
			t.Errorf("%q is taken", u)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", u, err)
		}
	}
	for _, u := range []string{"http://10.0.0.1:3000/a.git", "http://localhost/a", "https://git.local/a"} {
		if err := validGitURL(u, true); err != nil {
			t.Errorf("for development, %s: %v", u, err)
		}
	}
	if validGitURL("file:///a", true) == nil || validGitURL("http://u:p@h/a", true) == nil {
		t.Error("for development, too much is taken")
	}
}

func TestRefs(t *testing.T) {
	t.Parallel()
	for _, ref := range []string{"main", "feature/x-1", "v1.2.3", "a@b", "0123456789abcdef0123456789abcdef01234567", "ünï", "refs/heads/main", "a.lock.b"} {
		if err := validRef("git_ref", ref); err != nil {
			t.Errorf("%q: %v", ref, err)
		}
	}
	for _, ref := range []string{
		"", "@", "-x", "--upload-pack=id", "a..b", "a b", "a~1", "a^", "a:b", "a?", "a*", "a[b", "a\\b", "/a", "a/", "a//b", ".a", "a/.b", "a.", "a.lock", "a.lock/b", "a@{1}", "a\n", "a\x7f", "a\xff", strings.Repeat("a", 256),
	} {
		if validRef("git_ref", ref) == nil {
			t.Errorf("%q is taken", ref)
		}
	}
}

func TestRoots(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "", ".": "", "./": "", "apps/web": "apps/web", "a//b/./": "a/b", "..a": "..a", "a b": "a b"} {
		if got, err := validRoot(in); got != want || err != nil {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"/", "/etc", "..", "../a", "a/../b", "a/..", "-x", "a/-x", "a\x00", "a\nb", `a\b`, "\xff", strings.Repeat("a", 1025)} {
		if got, err := validRoot(in); err == nil {
			t.Errorf("%q is taken as %q", in, got)
		}
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	if got := clean(" a\x1b[1m\u202eb\x00\r\nc\xff ", 100); got != "a[1mb\nc\uFFFD" {
		t.Errorf("%q", got)
	}
	if got := clean(strings.Repeat("ü", 100), 7); got != "üüü" {
		t.Errorf("%q", got)
	}
	if got := cleanLine("a\n b\t\tc", 100); got != "a b c" {
		t.Errorf("%q", got)
	}
}

// FuzzGitURL: what is taken is a URL of a public host, without credentials.
func FuzzGitURL(f *testing.F) {
	for _, s := range []string{"https://example.com/a.git", "https://u:p@h.com/a", "https://127.1/a", "https://[::1]/a", "ext::sh", "-x", "https://a.com\\@b/c", "https://a.com/%2e%2e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if validGitURL(s, false) != nil {
			return
		}
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "https" || u.User != nil || strings.ContainsAny(s, " \n\r\t\x00\\") || s[0] == '-' {
			t.Errorf("%q is taken", s)
		}
		if addr, err := netip.ParseAddr(u.Hostname()); err == nil && !webhook.Public(addr) {
			t.Errorf("%q is taken", s)
		}
	})
}

func FuzzClean(f *testing.F) {
	f.Add("a\x1b[0m\xff", 3)
	f.Add(strings.Repeat("é", 50), 9)
	f.Fuzz(func(t *testing.T, s string, most int) {
		if most < 0 || most > 1<<20 {
			return
		}
		if got := clean(s, most); len(got) > most || !utf8.ValidString(got) || strings.ContainsAny(got, "\x1b\x00\r") {
			t.Errorf("%q becomes %q", s, got)
		}
	})
}
