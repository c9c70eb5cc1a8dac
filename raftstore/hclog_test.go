package raftstore

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/hashicorp/go-hclog"
)

func TestRaftLogLines(t *testing.T) {
	var out bytes.Buffer
	h := newHCLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
		Level: slog.LevelInfo,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})))
	h.With("peer", "n2").Named("raft").Warn("failed to contact", "servers", hclog.Fmt("%+v", []int{1, 2}), "n", 3)
	h.Debug("not shown")
	h.StandardLogger(nil).Print("from the standard logger")
	want := `level=WARN msg="failed to contact" component=raft peer=n2 servers="[1 2]" n=3
level=INFO msg="from the standard logger" component=raft
`
	if out.String() != want {
		t.Errorf("got\n%s", out.String())
	}
	if h.IsDebug() || !h.IsInfo() || h.GetLevel() != hclog.Info || h.Named("a").Named("b").Name() != "a.b" {
		t.Error("level or name")
	}
}
