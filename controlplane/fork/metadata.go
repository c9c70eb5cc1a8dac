package fork

import (
	"encoding/json"
	"fmt"
)

// Metadata returns the metadata of one child: the request's, overridden by the
// fork's own keys.
func Metadata(mode Mode, given json.RawMessage, parentID, group string, index int) (json.RawMessage, error) {
	if mode != Tree {
		return withKeys(nil, map[string]any{"forked_from": parentID})
	}
	return withKeys(given, map[string]any{
		"fork_tree_id": group, "fork_tree_role": "child", "fork_parent_id": parentID, "fork_index": index,
	})
}

// withKeys sets keys of a JSON object and leaves the others unchanged.
func withKeys(object json.RawMessage, keys map[string]any) (json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	if len(object) > 0 {
		if err := json.Unmarshal(object, &out); err != nil {
			return nil, fmt.Errorf("decode metadata: %w", err)
		}
	}
	if out == nil { // it was null
		out = map[string]json.RawMessage{}
	}
	for k, v := range keys {
		raw, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("encode metadata: %w", err)
		}
		out[k] = raw
	}
	raw, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encode metadata: %w", err)
	}
	return raw, nil
}
