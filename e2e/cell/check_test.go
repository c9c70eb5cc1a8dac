package cell

import (
	"fmt"
	"testing"
)

// full is a tenant with n sandboxes that live, each created within 10 ns after the one
// before, and what else happened.
func full(n int, more []operation, refusals ...refusal) *tenant {
	w := &tenant{refusals: refusals}
	for i := range int64(n) {
		w.history = append(w.history, operation{kind: "create", key: fmt.Sprint(i), call: 10 * i, ret: 10*i + 5})
	}
	w.history = append(w.history, more...)
	return w
}

func TestTheChecksOfALoad(t *testing.T) {
	at := func(kind string, key int, call int64, found, again bool) operation {
		return operation{kind: kind, key: fmt.Sprint(key), found: found, again: again, call: call, ret: call + 5}
	}
	for name, c := range map[string]struct {
		w                      *tenant
		unexplained, overQuota int // findings
	}{
		"as many as are allowed, and a refusal": {w: full(quota, nil, refusal{call: 200, ret: 210})},
		"one more than are allowed":             {w: full(quota+1, nil), overQuota: 1},
		"one more after a delete":               {w: full(quota, []operation{at("delete", 0, 200, true, false), at("create", quota, 300, true, false)})},
		"one more during a delete": {w: full(quota, []operation{
			{kind: "delete", key: "0", found: true, call: 200, ret: 400}, at("create", quota, 300, true, false),
		})},
		"a refusal with room": {w: full(quota-1, nil, refusal{call: 200, ret: 210}), overQuota: 1},
		"a refusal with room, beside another": {
			w: full(quota-1, nil, refusal{call: 200, ret: 210}, refusal{call: 195, ret: 220}), overQuota: 2,
		},
		"a refusal beside a create that was tried again and refused": {
			// An earlier attempt of the second may have taken the room. Nothing took it from the second.
			w: full(quota-1, nil, refusal{call: 200, ret: 210}, refusal{call: 195, ret: 220, again: true}), overQuota: 1,
		},
		"a refusal beside a create that was answered later": {
			w: full(quota-1, []operation{{kind: "create", key: fmt.Sprint(quota), call: 205, ret: 300}}, refusal{call: 200, ret: 210}),
		},
		"a refusal during a delete": {
			w: full(quota, []operation{{kind: "delete", key: "0", found: true, call: 190, ret: 205}}, refusal{call: 200, ret: 210}),
		},
		"a refusal after a delete": {
			w: full(quota, []operation{at("delete", 0, 150, true, false)}, refusal{call: 200, ret: 210}), overQuota: 1,
		},
		"found, deleted and not found": {w: full(1, []operation{
			at("get", 0, 100, true, false), at("delete", 0, 200, true, false), at("get", 0, 300, false, false), at("list", 0, 400, false, false),
		})},
		"not found before the delete":     {w: full(1, []operation{at("get", 0, 100, false, false), at("delete", 0, 200, true, false)}), unexplained: 1},
		"found after the delete":          {w: full(1, []operation{at("delete", 0, 100, true, false), at("list", 0, 200, true, false)}), unexplained: 1},
		"a delete that finds nothing":     {w: full(1, []operation{at("delete", 0, 100, false, false)}), unexplained: 1},
		"a delete that was tried again":   {w: full(1, []operation{at("delete", 0, 100, false, true)})},
		"a second delete finds nothing":   {w: full(1, []operation{at("delete", 0, 100, true, false), at("delete", 0, 200, false, false)})},
		"one key that two creates answer": {w: full(1, []operation{at("create", 0, 100, true, false)}), unexplained: 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.w.unexplained(); len(got) != c.unexplained {
				t.Errorf("%d sandboxes with answers that are not linearizable, and %d were expected: %q", len(got), c.unexplained, got)
			}
			if got := c.w.overQuota(); len(got) != c.overQuota {
				t.Errorf("%d findings about the quota, and %d were expected: %q", len(got), c.overQuota, got)
			}
		})
	}
}
