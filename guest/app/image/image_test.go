package image

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestArgsOfADockerfile(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "",
		"FROM x\nARG A\narg B=1\n ARG C=\"x y\"": "A B C",
		"ARG A=1 B C=2\nARG A":                   "A B C",
		"ARG \\\n  A \\\n# between\n\n  B\nRUN ARG=1": "A B",
		"# escape=`\nARG A `\n B":                     "A B",
		"RUN a \\\n ARG B\nENV ARG=1\n#ARG C":         "",
		"ARG -x 1a a-b =x $A é":                       "",
		"ARG A \\":                                    "",
		"ARG":                                         "",
	} {
		if got := strings.Join(Args(text), " "); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	var many strings.Builder
	for i := range 2 * maxArgs {
		fmt.Fprintf(&many, "ARG A%d\n", i)
	}
	if got := len(Args(many.String())); got != maxArgs {
		t.Errorf("%d names", got)
	}
}

func FuzzArgs(f *testing.F) {
	f.Add("# escape=`\nARG A `\n B")
	f.Add("ARG \\")
	f.Fuzz(func(t *testing.T, text string) {
		for _, name := range Args(text) {
			if !argName.MatchString(name) {
				t.Errorf("%q", name)
			}
		}
	})
}

func TestWhatAnImageSays(t *testing.T) {
	got, err := parse([]byte(`{"Docker":{"config":{"User":"web:www","Env":["PATH=/bin","A=b=c","=x","none"],"Entrypoint":["/e"],"Cmd":["c","d e"],"WorkingDir":"srv"}}}`), false)
	want := Image{User: "web:www", Env: []string{"PATH=/bin", "A=b=c"}, Entrypoint: []string{"/e"}, Cmd: []string{"c", "d e"}, Dir: "/srv"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if got := got.Argv(); !slices.Equal(got, []string{"/e", "c", "d e"}) {
		t.Errorf("%q", got)
	}
	for name, raw := range map[string]string{
		"no JSON": "x", "cut off": `{"Docker":{`, "NUL": `{"Docker":{"config":{"Cmd":["a\u0000"]}}}`, "other kinds": `{"Docker":{"config":{"Cmd":"x"}}}`,
		"many": `{"Docker":{"config":{"Cmd":[` + strings.Repeat(`"a",`, maxWords) + `"a"]}}}`, "long": `{"Docker":{"config":{"User":"` + strings.Repeat("a", maxBytes+1) + `"}}}`,
	} {
		if _, err := parse([]byte(raw), false); err == nil || !strings.Contains(err.Error(), ErrBad.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
	said := &bounded{most: 4}
	for _, part := range []string{"abc", "de"} {
		_, _ = said.Write([]byte(part))
	}
	if _, err := parse(said.Bytes(), said.over); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("%v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"Docker":{"config":{"Env":["A=b"],"Cmd":["c"]}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		i, err := parse(raw, false)
		if err != nil {
			return
		}
		if slices.ContainsFunc(slices.Concat(i.Argv(), i.Env), func(s string) bool { return strings.ContainsRune(s, 0) }) || i.Dir != "" && i.Dir[0] != '/' {
			t.Errorf("%+v", i)
		}
	})
}
