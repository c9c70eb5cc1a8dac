package box

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/vmm"
)

// source finds what a new box is started from. The caller releases it.
func (h *Host) source(ctx context.Context, id string, spec *hostapi.BoxSpec) (*source, error) {
	var src *source
	var err error
	switch {
	case spec.Capture != "":
		src, err = h.fromCapture(ctx, spec)
	case spec.WarmFrom != "":
		src, err = h.fromParent(ctx, id, spec)
	case spec.DiskOf != "":
		src, err = h.fromDisk(ctx, spec)
	default:
		src, err = h.fromTemplate(ctx, spec)
	}
	if err != nil {
		return nil, err
	}
	if spec.Asleep {
		if err := src.arrives(id); err != nil {
			src.release()
			return nil, err
		}
	}
	src.cold = spec.Boot == hostapi.BootCold
	src.origin = spec.Origin
	return src, nil
}

func (h *Host) fromTemplate(ctx context.Context, spec *hostapi.BoxSpec) (*source, error) {
	tpl, err := h.templateOf(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &source{tpl: tpl, resetTCP: tpl.OpenConnections}, nil
}

// templateOf finds a build that is asked for, whatever the template's name means
// here.
func (h *Host) templateOf(ctx context.Context, spec *hostapi.BoxSpec) (tpl Template, err error) {
	if len(spec.Builds) == 0 {
		return h.templates.Get(ctx, spec.Template)
	}
	for _, id := range spec.Builds {
		if tpl, err = h.templates.Build(ctx, id); err == nil {
			return tpl, nil
		}
	}
	return tpl, err
}

// fromCapture starts a box from a capture, of which nothing is copied but the
// disk: all children share its memory.
func (h *Host) fromCapture(ctx context.Context, spec *hostapi.BoxSpec) (*source, error) {
	info, dir, release, err := h.captures.Use(ctx, spec.Capture, spec.Manifest)
	if err != nil {
		return nil, err
	}
	src := &source{disk: filepath.Join(dir, capture.FileOverlay), done: []func(){release}}
	if spec.Boot != hostapi.BootCold {
		src.from, src.resetTCP, src.savedBy = dir, true, info.Engine
		switch {
		case !info.Memory:
			err = hosterr.Invalid("capture %s holds no memory: boot from it cold", info.ID)
		default:
			if e := vmm.Restores(h.cfg.Engine, info.Engine); e != nil {
				err = fmt.Errorf("%w: %w", hosterr.ErrBadSnapshot, e)
			}
		}
	}
	if err == nil {
		src.tpl, err = h.templates.Build(ctx, info.BuildID)
	}
	if err != nil {
		src.release()
		return nil, err
	}
	return src, nil
}

// fromParent is the source of a warm fork's child.
func (h *Host) fromParent(ctx context.Context, id string, spec *hostapi.BoxSpec) (*source, error) {
	parent, err := h.lookup(spec.WarmFrom)
	if err != nil {
		return nil, fmt.Errorf("parent of a warm fork: %w", err)
	}
	rec := parent.record()
	if err := forkable(&rec, id); err != nil {
		return nil, err
	}
	tpl, err := h.templates.Build(ctx, rec.BuildID)
	if err != nil {
		return nil, err
	}
	return &source{tpl: tpl, warm: parent, from: h.paths.State(parent.id), disk: h.paths.Overlay(parent.id)}, nil
}

// forkable says whether a box can be the parent of a warm fork's child: it runs,
// or was stopped for that very child, whose create was cut off.
func forkable(rec *ledger.Record, child string) error {
	switch {
	case rec.State != ledger.Running && (rec.State != ledger.Paused || !rec.Stopped || rec.WarmChild != child):
		return fmt.Errorf("%w: the parent is %s", hosterr.ErrNotRunning, rec.State)
	case len(rec.Volumes) > 0:
		return fmt.Errorf("%w: volumes are attached", hosterr.ErrIllegalState)
	}
	return nil
}
