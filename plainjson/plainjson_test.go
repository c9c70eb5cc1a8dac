package plainjson

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTextsGrowNoMoreThanTheyMust(t *testing.T) {
	for in, want := range map[string]string{
		"a < b && c > d": `{"A":"a < b && c > d","B":"a < b && c > d"}`,
		"a \"b\"\n":      `{"A":"a \"b\"\n","B":"a \"b\"\n"}`,
		"\x01\u2028é":    `{"A":"\u0001\u2028é","B":"\u0001\u2028é"}`,
	} {
		raw := json.RawMessage(want[strings.Index(want, `:`)+1 : strings.Index(want, `,"B"`)])
		got, err := Marshal(struct {
			A string
			B json.RawMessage
		}{in, raw})
		if err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}

func TestWhatCannotBeEncoded(t *testing.T) {
	if got, err := Marshal(func() {}); err == nil || got != nil {
		t.Errorf("got %s, %v", got, err)
	}
}
