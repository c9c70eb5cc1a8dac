package main

import (
	"strings"
	"testing"
)

func TestMarksAreJudged(t *testing.T) {
	m := newMarks()
	m.certain["a"], m.certain["b"], m.maybe["c"] = true, true, true
	for name, c := range map[string]struct{ content, want string }{
		"all there":          {"a\nb\nc\n", ""},
		"an unknown outcome": {"a\nb\n", ""},
		"lost":               {"a\nc\n", "b was acknowledged and is lost"},
		"done twice":         {"a\nb\na\n", "a was done 2 times"},
		"unknown done twice": {"a\nb\nc\nc\n", "c was done 2 times"},
		"from elsewhere":     {"a\nb\nd\n", "d was never asked for here"},
	} {
		if got := strings.Join(m.judge(c.content), "; "); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestChildrenInheritMarks(t *testing.T) {
	parent := newMarks()
	parent.certain["a"] = true
	child := parent.inherited()
	parent.certain["b"] = true
	if wrong := child.judge("a\n"); len(wrong) > 0 {
		t.Errorf("what the parent did after the fork is wanted of the child: %v", wrong)
	}
}
