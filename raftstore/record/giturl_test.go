package record

import "testing"

func TestNormalGitURL(t *testing.T) {
	for in, want := range map[string]string{
		"https://github.com/Acme/Shop":           "https://github.com/acme/shop",
		"HTTPS://GitHub.com:443/acme/shop.GIT/":  "https://github.com/acme/shop",
		"https://user:pass@github.com/acme/shop": "https://github.com/acme/shop",
		"https://git.example.com:8443/a/b/c.git": "https://git.example.com:8443/a/b/c",
		"http://127.0.0.1:3000/a/b":              "http://127.0.0.1:3000/a/b",
		"https://github.com/acme/a%2Fb":          "https://github.com/acme/a%2fb",
		"https://github.com":                     "",
		"https://github.com/.git":                "",
		"https://github.com/acme/shop?x=1":       "",
		"https://github.com/acme/shop#main":      "",
		"git@github.com:acme/shop.git":           "",
		"ssh://git@github.com/acme/shop.git":     "",
		"file:///etc/passwd":                     "",
		"ext::sh -c id":                          "",
		"":                                       "",
		"https:acme":                             "",
		"https://github.com/a\nb":                "",
	} {
		if got := NormalGitURL(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// The normal form of a normal form is itself: an index finds what it is asked for.
func FuzzNormalGitURL(f *testing.F) {
	for _, s := range []string{"https://github.com/Acme/Shop.git/", "http://[::1]:80/a", "https://a/b.git.git", "https://a/%2e%2e/b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		once := NormalGitURL(s)
		if again := NormalGitURL(once); again != once {
			t.Errorf("%q: %q, then %q", s, once, again)
		}
	})
}
