package sandbox

import (
	"encoding/json"
	"fmt"

	"github.com/berth-cloud/berth/plainjson"
	"github.com/berth-cloud/berth/raftstore/record"
)

// SealEnv seals the environment of a sandbox or a snapshot. For none it returns nil.
func (f *Flows) SealEnv(id string, env map[string]string) ([]byte, error) {
	if len(env) == 0 {
		return nil, nil
	}
	raw, err := plainjson.Marshal(env)
	if err != nil {
		return nil, fmt.Errorf("encode environment: %w", err)
	}
	sealed, err := f.Sealer.Seal(raw, record.EnvContext(id))
	if err != nil {
		return nil, fmt.Errorf("seal environment: %w", err)
	}
	return sealed, nil
}

// OpenEnv is the inverse of SealEnv, for the same id.
func (f *Flows) OpenEnv(id string, sealed []byte) (map[string]string, error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	raw, err := f.Sealer.Open(sealed, record.EnvContext(id))
	if err != nil {
		return nil, fmt.Errorf("open environment: %w", err)
	}
	var env map[string]string
	if err := json.Unmarshal(raw, &env); err != nil {
		return nil, fmt.Errorf("decode environment: %w", err)
	}
	return env, nil
}

// ResealEnv seals a sandbox's environment for another row, which inherits it.
func (f *Flows) ResealEnv(from *record.Sandbox, forID string) ([]byte, error) {
	env, err := f.OpenEnv(from.ID, from.EnvSealed)
	if err != nil {
		return nil, err
	}
	return f.SealEnv(forID, env)
}
