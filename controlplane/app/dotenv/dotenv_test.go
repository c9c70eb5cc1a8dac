package dotenv

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		in   string
		want map[string]string
	}{
		"empty":            {"", map[string]string{}},
		"plain":            {"A=1\nB=two words  \n", map[string]string{"A": "1", "B": "two words"}},
		"space around":     {"  A  =  1  \n\n\tB= 2", map[string]string{"A": "1", "B": "2"}},
		"no value":         {"A=\nB=\n", map[string]string{"A": "", "B": ""}},
		"comments":         {"# first\nA=1 # one\nB=x#y\n  # last", map[string]string{"A": "1", "B": "x#y"}},
		"comment for all":  {"A=#1", map[string]string{"A": ""}},
		"export":           {"export A=1\nexport=2\nexport\tB=3", map[string]string{"A": "1", "export": "2", "B": "3"}},
		"windows":          {"\ufeffA=1\r\nB=\"x\r\ny\"\r\n", map[string]string{"A": "1", "B": "x\ny"}},
		"single quotes":    {`A='a "b" \n $B # c' # d`, map[string]string{"A": `a "b" \n $B # c`}},
		"backticks":        {"A=`it's \"x\" $B`", map[string]string{"A": `it's "x" $B`}},
		"double quotes":    {`A="a 'b' \"c\" \\ \t|\n # \q"`, map[string]string{"A": "a 'b' \"c\" \\ \t|\n # \\q"}},
		"multi-line":       {"K=\"-----BEGIN\nabc=\n-----END\"\nL='x\ny'\nM=1", map[string]string{"K": "-----BEGIN\nabc=\n-----END", "L": "x\ny", "M": "1"}},
		"interpolation":    {"A=1\nB=$A-${A}\nC=\"<${A}$B>\"", map[string]string{"A": "1", "B": "1-1", "C": "<11-1>"}},
		"later":            {"B=${A}\nA=1", map[string]string{"A": "1", "B": ""}},
		"a hash":           {"H=$2b$10$N9qo8uLOickgx2ZMRZoMye\nP=\"pa$$word\"", map[string]string{"H": "$2b$10$N9qo8uLOickgx2ZMRZoMye", "P": "pa$$word"}},
		"itself":           {"P=/bin\nP=$P:/sbin", map[string]string{"P": "/bin:/sbin"}},
		"escaped dollar":   {"A=1\nB=\\$A\nC=\"\\${A}\"", map[string]string{"A": "1", "B": "$A", "C": "${A}"}},
		"no variable":      {"A=$ 5$\nB=$1\nC=${\nD=${A", map[string]string{"A": "$ 5$", "B": "$1", "C": "${", "D": "${A"}},
		"default":          {"E=\nA=${E:-x}|${E-x}|${N-y}|${N:-${M:-z}}|${E:-}", map[string]string{"E": "", "A": "x||y|z|"}},
		"equals in value":  {"URL=postgres://u:p@h/db?x=1&y=2", map[string]string{"URL": "postgres://u:p@h/db?x=1&y=2"}},
		"the last one has": {"A=1\nA=2", map[string]string{"A": "2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse(tc.in)
			if err != nil || !maps.Equal(got, tc.want) {
				t.Errorf("%q: got %q, %v, want %q", tc.in, got, err, tc.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"A=1\nB":           "line 2: want = after",
		"=1":               "line 1: want the name",
		"A=1\n\n!B=2":      "line 3: want the name",
		"A=\"secret\nB=2":  "line 1: A: its quote is not closed",
		"A='secret":        "line 1: A: its quote is not closed",
		"A=\"\\\"":         "line 1: A: its quote is not closed",
		"A='x\ny'\nB='1'2": "line 3: B: something stands behind",
	} {
		_, err := Parse(in)
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %s", in, err, want)
		}
	}
}

// TestBomb: each line doubles the one before.
func TestBomb(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("A0=xxxxxxxxxxxxxxxx\n")
	for i := range 64 {
		fmt.Fprintf(&b, "A%d=$A%d$A%d\n", i+1, i, i)
	}
	if _, err := Parse(b.String()); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	deep := "A=" + strings.Repeat("${B:-", 1000) + strings.Repeat("}", 1000)
	if _, err := Parse(deep); err == nil {
		t.Error("a thousand defaults in each other are taken")
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"A=1", "export A=\"x\\n${B:-y}\"", "A='x\ny' # z\nB=`$A`", "A=${A:-${A-}}\r\n", "\ufeffA=$"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		env, err := Parse(s)
		if err != nil {
			return
		}
		size := 0
		for k, v := range env {
			size += len(k) + len(v)
		}
		if size > MaxResult {
			t.Errorf("%d bytes", size)
		}
	})
}
