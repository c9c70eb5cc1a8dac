package template

import "testing"

func TestNearestTemplate(t *testing.T) {
	names := []string{"base", "code-interpreter", "node", "python"}
	for name, want := range map[string]string{"bse": "base", "pyhton": "python", "code-interperter": "code-interpreter", "ruby-on-rails": ""} {
		if got := nearest(name, names); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestUnknown(t *testing.T) {
	for name, want := range map[string]string{
		"bse":         `no template "bse"; did you mean "base"?; available: base, python`,
		"ruby":        `no template "ruby"; available: base, python`,
		"postgres-61": `no template "postgres-61"; available: base, python`,
	} {
		if e := Unknown(name, []string{"python", "base", "postgres-16", "python", Key("ws", "web")}); e.Message != "unknown template" || e.Detail != want {
			t.Errorf("%+v", e)
		}
	}
	if e := Unknown("base", nil); e.Detail != `no template "base"; available: none` {
		t.Errorf("%+v", e)
	}
}
