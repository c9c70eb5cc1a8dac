package main

import (
	"strings"
	"testing"
	"time"
)

func TestMarksAreJudged(t *testing.T) {
	m := newMarks()
	m.certain["a"], m.certain["b"], m.maybe["c"] = true, true, true
	for name, c := range map[string]struct{ content, want string }{
		"all there":          {"a\nb\nc\n", ""},
		"an unknown outcome": {"a\nb\n", ""},
		"lost":               {"a\nc\n", "b was acknowledged but is lost"},
		"done twice":         {"a\nb\na\n", "a is there 2 times"},
		"unknown done twice": {"a\nb\nc\nc\n", "c is there 2 times"},
		"from elsewhere":     {"a\nb\nd\n", "d is from another sandbox"},
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
		t.Errorf("the child is expected to have what the parent did after the fork: %v", wrong)
	}
}

func TestItIsCalmSinceTheLastMend(t *testing.T) {
	h := newHistory()
	before := time.Now()
	if !h.calmSince(before) {
		t.Error("nothing was broken yet")
	}
	h.breaks()
	if h.calmSince(time.Now()) {
		t.Error("something is broken")
	}
	h.mends()
	if h.calmSince(before) {
		t.Error("something was broken since")
	}
	if !h.calmSince(h.repaired.Add(1)) {
		t.Error("it was repaired earlier")
	}
}

func TestDeathsOfTheDoomedAloneAreExcused(t *testing.T) {
	h := newHistory()
	h.doom("aaaaaaaabbbbbbbbccccccccdd", "its VMM was killed")
	got, err := h.deaths(strings.NewReader(`{"msg":"VMM died","sandbox_id":"aaaaaaaa","signal":"KILL"}
{"msg":"create failed","sandbox_id":"aaaaaaaa","error":"start: VMM died: killed by signal KILL"}
{"msg":"VMM died","sandbox_id":"eeeeeeee","exit_code":1}
a line of something else
{"msg":"create failed","sandbox_id":"ffffffff","error":"restore: VMM died: killed by signal SEGV; the VMM's log ends with \"x\""}
{"msg":"create failed","sandbox_id":"gggggggg","error":"the guest rebooted, or its kernel crashed"}
{"msg":"create failed","sandbox_id":"hhhhhhhh","error":"take a network slot: context deadline exceeded"}
{"msg":"sandbox is deleted","sandbox_id":"eeeeeeee"}
`))
	if err != nil || len(got) != 3 || !strings.Contains(got[0], "eeeeeeee") || !strings.Contains(got[1], "ffffffff") || !strings.Contains(got[2], "gggggggg") {
		t.Errorf("deaths are %q, %v", got, err)
	}
}
