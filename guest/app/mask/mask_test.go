package mask

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
)

// pieces writes a text in random pieces.
func pieces(t testing.TB, text string, secrets []string, r *rand.Rand) string {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b, secrets)
	for len(text) > 0 {
		n := 1 + r.IntN(len(text))
		if _, err := w.Write([]byte(text[:n])); err != nil {
			t.Fatal(err)
		}
		text = text[n:]
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestSecretsAreMasked(t *testing.T) {
	const secret = `p4ss/w0rd+"x'&é`
	quoted, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.StdEncoding.EncodeToString
	for name, text := range map[string]string{
		"alone":        secret,
		"in a line":    "PASSWORD=" + secret + " is set\n",
		"query":        "?p=" + url.QueryEscape(secret),
		"small hex":    strings.ToLower("?p=" + url.QueryEscape(secret)),
		"path":         "/" + url.PathEscape(secret) + "/",
		"json":         string(quoted),
		"shell":        `+ echo 'p4ss/w0rd+"x'\''&é'`,
		"hex":          hex.EncodeToString([]byte(secret)),
		"HEX":          strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"base64":       b64([]byte(secret)),
		"base64 of 1":  b64([]byte("u:" + secret + ":x")),
		"base64 of 2":  b64([]byte("u" + secret + "yz")),
		"base64 url":   base64.URLEncoding.EncodeToString([]byte("abc" + secret)),
		"split":        secret[:4] + "\n" + secret[4:9] + "\r\n   " + secret[9:],
		"base64 split": b64([]byte(secret))[:5] + "\n" + b64([]byte(secret))[5:],
		"twice":        secret + secret,
	} {
		for seed := range uint64(20) {
			got := pieces(t, text, []string{"other", secret}, rand.New(rand.NewPCG(seed, 1)))
			if !strings.Contains(got, Mask) {
				t.Errorf("%s: %q", name, got)
			}
			for n := 5; n <= len(secret); n++ {
				if strings.Contains(got, secret[n-5:n]) {
					t.Fatalf("%s: %q shows %q", name, got, secret[n-5:n])
				}
			}
		}
	}
	for text, want := range map[string]string{
		"a " + secret + " b":   "a " + Mask + " b",
		"nothing\nhere p4ss/w": "nothing\nhere p4ss/w",
		"":                     "",
	} {
		if got := Text(text, []string{secret}); got != want {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestTheLongestOfOverlappingSecretsIsMasked(t *testing.T) {
	secrets := []string{"abcd", "abcdefgh", "cdefghij", "zz"}
	for text, want := range map[string]string{
		"xabcdx":       "x" + Mask + "x",
		"xabcdefghx":   "x" + Mask + "x",
		"xabcdefghijx": "x" + Mask + "x",
		"xabcdefgx":    "x" + Mask + "efgx",
		"zz top":       "zz top", // too short to be masked
	} {
		if got := Text(text, secrets); got != want {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestLinesOfALongSecretAreMasked(t *testing.T) {
	key := "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\nAASCBKcwggSjAgEAAoIBAQC7\n-----END KEY-----\n"
	if got := Text("> AASCBKcwggSjAgEAAoIBAQC7 <", []string{key}); got != "> "+Mask+" <" {
		t.Errorf("%q", got)
	}
	if got := Text(strings.ReplaceAll(key, "\n", `\n`), []string{key}); strings.Contains(got, "MIIE") {
		t.Errorf("%q", got)
	}
}

func TestWhatIsHeldGoesWhenNothingComes(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b, []string{"listening-to-nobody"})
	step := func(text, want string) {
		t.Helper()
		if text != "" {
			_, _ = w.Write([]byte(text))
		}
		if b.String() != want {
			t.Errorf("after %q: %q, want %q", text, b.String(), want)
		}
	}
	step("it is l", "it is ")
	_ = w.Idle()
	step("", "it is l")
	step("istening-to-", "it is l") // a long part is held
	_ = w.Idle()
	step("", "it is l")
	step("nobody!", "it is l"+Mask+"!")
	// A whole one goes at once.
	step(" listening-to-nobody\n", "it is l"+Mask+"! ")
	_ = w.Idle()
	step("", "it is l"+Mask+"! "+Mask+"\n")
}

func TestManyLongSecrets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var secrets []string
	for range 4 {
		raw := make([]byte, 32<<10)
		for i := range raw {
			raw[i] = byte('a' + r.IntN(26))
		}
		secrets = append(secrets, string(raw))
	}
	if got := Text("x"+secrets[2]+"y"+base64.StdEncoding.EncodeToString([]byte(secrets[3])), secrets); len(got) > 30 {
		t.Errorf("%d bytes", len(got))
	}
}

func FuzzWriter(f *testing.F) {
	f.Add("some secret is here", "secret", uint64(1))
	f.Add("a\nb\ncd", "abcd", uint64(2))
	f.Add("ababab", "abab", uint64(3))
	f.Add(" \n \r\n", "\n\n\n\n", uint64(4))
	f.Fuzz(func(t *testing.T, around, secret string, seed uint64) {
		if len(secret) > 1000 || len(around) > 10_000 {
			return
		}
		secrets := []string{secret}
		r := rand.New(rand.NewPCG(seed, seed))
		at := r.IntN(len(around) + 1)
		text := around[:at] + secret + around[at:]
		got := pieces(t, text, secrets, r)
		if whole := Text(text, secrets); got != whole {
			t.Errorf("in pieces %q, whole %q", got, whole)
		}
		if plain := squeeze(secret); len(secret) >= minSecret && len(plain) >= minSecret && !strings.Contains(Mask, plain) {
			for _, part := range strings.Split(got, Mask) {
				if strings.Contains(squeeze(part), plain) {
					t.Errorf("%q shows %q", got, secret)
				}
			}
		}
		if squeeze(text) == text && len(secret) < minSecret && got != text {
			t.Errorf("%q became %q", text, got)
		}
	})
}
