package raftstore

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// history records what concurrent clients did to registers and saw, for
// porcupine to judge: is there an order of the operations, each between its
// call and its return, in which a plain register would have answered so?
type history struct {
	start time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation
}

type registerOp struct {
	kind  string // read, write, or swap: write that returns the value before
	key   string
	value string
}

type registerAnswer struct {
	value   string
	unknown bool // it may or may not have happened, now or later
}

func newHistory() *history { return &history{start: time.Now()} }

// do records one operation. Those that certainly did not happen are left out;
// one with an unknown outcome is taken to be under way until the end.
func (h *history) do(client int, op registerOp, f func() (value string, happened, known bool)) {
	call := time.Since(h.start)
	value, happened, known := f()
	if known && !happened || !known && op.kind == "read" {
		return
	}
	o := porcupine.Operation{
		ClientId: client, Input: op, Call: int64(call),
		Output: registerAnswer{value, !known}, Return: int64(time.Since(h.start)),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

var registers = porcupine.Model{
	Partition: func(ops []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range ops {
			k := o.Input.(registerOp).key
			byKey[k] = append(byKey[k], o)
		}
		var out [][]porcupine.Operation
		for _, p := range byKey {
			out = append(out, p)
		}
		return out
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		op, out := input.(registerOp), output.(registerAnswer)
		switch op.kind {
		case "read":
			return out.value == state, state
		case "write":
			return true, op.value
		default: // swap
			return out.unknown || out.value == state, op.value
		}
	},
	DescribeOperation: func(input, output any) string {
		op, out := input.(registerOp), output.(registerAnswer)
		return fmt.Sprintf("%s %s %q → %q unknown=%v", op.kind, op.key, op.value, out.value, out.unknown)
	},
}

func (h *history) check(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	end := int64(time.Since(h.start)) + 1
	unknown := 0
	for i := range h.ops {
		if h.ops[i].Output.(registerAnswer).unknown {
			h.ops[i].Return = end
			// A client of its own: porcupine wants one operation a client at a time.
			h.ops[i].ClientId = 1_000_000 + i
			unknown++
		}
	}
	t.Logf("%d operations, %d with an unknown outcome", len(h.ops), unknown)
	result, info := porcupine.CheckOperationsVerbose(registers, h.ops, time.Minute)
	if result == porcupine.Ok {
		return
	}
	path := filepath.Join(os.TempDir(), fmt.Sprintf("%s-%d.html", filepath.Base(t.Name()), os.Getpid()))
	if err := porcupine.VisualizePath(registers, info, path); err != nil {
		path = err.Error()
	}
	t.Errorf("not linearizable: %s; see %s", result, path)
}
