package mask

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
)

const (
	// minSecret is the shortest value that is masked, in bytes. Shorter ones, as "1" or
	// "on", would be found everywhere.
	minSecret = 4
	// minEncoded is the shortest piece of an encoding that is masked alone.
	minEncoded = 6
	// minLine is the shortest line of a value with several that is masked alone.
	minLine = 8
)

// patterns returns what is looked for: the values, their lines, and their encodings.
// White space that a stream is compared without is taken out of them.
func patterns(secrets []string) []string {
	found := map[string]struct{}{}
	add := func(s string, least int) {
		if s = squeeze(s); len(s) >= least {
			found[s] = struct{}{}
		}
	}
	for _, s := range secrets {
		if len(s) < minSecret {
			continue
		}
		for _, v := range texts(s) {
			add(v, minSecret)
		}
		for _, v := range encodings(s) {
			add(v, minEncoded)
		}
		if strings.Contains(strings.TrimSpace(s), "\n") {
			for line := range strings.Lines(s) {
				add(strings.TrimSpace(line), minLine)
			}
		}
	}
	out := make([]string, 0, len(found))
	for s := range found {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

// squeeze takes out what a Writer skips.
func squeeze(s string) string {
	var w Writer
	out := make([]byte, 0, len(s))
	for i := range len(s) {
		if !w.skips(s[i]) {
			out = append(out, s[i])
		}
	}
	return string(out)
}

// texts are the ways in which programs write a value: without its outer white space, in
// a URL, in JSON, in a shell's trace.
func texts(s string) []string {
	out := []string{s, strings.TrimSpace(s), strings.ReplaceAll(s, "'", `'\''`), strings.ReplaceAll(s, "'", `'"'"'`)}
	query := url.QueryEscape(s)
	for _, escaped := range []string{query, strings.ReplaceAll(query, "+", "%20"), url.PathEscape(s), component(s)} {
		out = append(out, escaped, lowerHex(escaped))
	}
	for _, html := range []bool{false, true} {
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(html)
		if e.Encode(s) == nil {
			quoted := strings.TrimSuffix(b.String(), "\n")
			out = append(out, quoted[1:len(quoted)-1])
		}
	}
	return out
}

// component is JavaScript's encodeURIComponent, which leaves !'()* as they are.
func component(s string) string {
	return strings.NewReplacer("+", "%20", "%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*").Replace(url.QueryEscape(s))
}

// lowerHex writes the digits of %AB in small letters.
func lowerHex(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:], strings.ToLower(string(b[i+1:i+3])))
		}
	}
	return string(b)
}

// encodings are a value in hexadecimal digits and in base64, also as a part of something
// longer: then its first and last character depend on what is beside it, and three
// alignments are possible.
func encodings(s string) []string {
	lower := hex.EncodeToString([]byte(s))
	out := []string{lower, strings.ToUpper(lower)}
	for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 {
			text := e.EncodeToString(append(make([]byte, before), s...))
			first := (before*8 + 5) / 6
			last := (before + len(s)) * 8 / 6
			out = append(out, text[first:last])
		}
	}
	return out
}
