package sandbox

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Limits of registered ports.
const (
	MaxPorts     = 64 // of one sandbox
	maxPortLabel = 63
)

// Ports contains the use cases of sandboxes' ports and previews.
type Ports struct {
	*reach
	previewURL string // see Config
	tokens     PreviewTokens
}

// List returns the ports on which something listens, and the registered ones, by
// number.
func (p *Ports) List(ctx context.Context, c core.Caller, id string) ([]api.Port, error) {
	var listening []hostapi.Port
	var row *record.Sandbox
	err := p.onRunning(ctx, c, id, func(ctx context.Context, t target) error {
		ctx, release := p.core.Hosts.WhileHeard(ctx, t.row.HostID)
		defer release()
		var err error
		row = t.row
		listening, err = t.client.Ports(ctx, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	return p.merge(row, listening), nil
}

// merge returns one entry for each port and protocol, whatever number of addresses
// it is bound to.
func (p *Ports) merge(row *record.Sandbox, listening []hostapi.Port) []api.Port {
	type key struct {
		port     int
		protocol string
	}
	found := map[key]*api.Port{}
	at := func(port int, protocol string, reachable bool) *api.Port {
		k := key{port, protocol}
		if found[k] == nil {
			found[k] = &api.Port{Port: port, Protocol: protocol}
		}
		if protocol == "tcp" && reachable {
			found[k].URL = p.url(row.ID, port)
		}
		return found[k]
	}
	for _, l := range listening {
		e := at(l.Port, l.Protocol, reachable(l))
		e.Process = cmp.Or(e.Process, l.Process)
	}
	for _, registered := range row.Ports {
		at(registered.Port, "tcp", true).Label = registered.Label
	}
	out := make([]api.Port, 0, len(found))
	for _, one := range found {
		out = append(out, *one)
	}
	slices.SortFunc(out, func(a, b api.Port) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol))
	})
	return out
}

// reachable reports whether something listens where a preview reaches it. Of loopback
// those are the addresses that the guest's agent connects to.
func reachable(l hostapi.Port) bool {
	address, err := netip.ParseAddr(l.Address)
	if err != nil {
		return true // an older agent does not say the address
	}
	address = address.Unmap()
	return !address.IsLoopback() || slices.Contains(guestapi.Loopback[:], address.String())
}

func (p *Ports) url(id string, port int) string {
	return strings.Replace(p.pattern(id), "{port}", strconv.Itoa(port), 1)
}

// Add registers a port, or changes the label of a registered one.
func (p *Ports) Add(ctx context.Context, c core.Caller, id string, in api.AddPort) (api.Port, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Port{}, err
	}
	err := p.change(ctx, c, id, func(ports []record.SandboxPort) ([]record.SandboxPort, error) {
		switch {
		case in.Port < 1 || in.Port > 65535:
			return nil, apierror.Invalid("invalid port", "port must be from 1 to 65535")
		case utf8.RuneCountInString(in.Label) > maxPortLabel || strings.ContainsFunc(in.Label, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return nil, apierror.Invalid("invalid label", "a label has at most %d printable characters", maxPortLabel)
		}
		ports = slices.DeleteFunc(ports, func(p record.SandboxPort) bool { return p.Port == in.Port })
		if len(ports) >= MaxPorts {
			return nil, &apierror.Error{Code: apierror.EConflict, Message: "too many ports", Detail: "at most 64 are registered; any port has a preview URL all the same"}
		}
		return append(ports, record.SandboxPort{Port: in.Port, Label: in.Label}), nil
	})
	if err != nil {
		return api.Port{}, err
	}
	return api.Port{Port: in.Port, Protocol: "tcp", URL: p.url(id, in.Port), Label: in.Label}, nil
}

// Remove removes a registration.
func (p *Ports) Remove(ctx context.Context, c core.Caller, id string, port int) error {
	if err := c.RequireWorkspace(); err != nil {
		return err
	}
	return p.change(ctx, c, id, func(ports []record.SandboxPort) ([]record.SandboxPort, error) {
		left := slices.DeleteFunc(slices.Clone(ports), func(p record.SandboxPort) bool { return p.Port == port })
		if len(left) == len(ports) {
			return nil, &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "no such port is registered"}
		}
		return left, nil
	})
}

func (p *Ports) change(ctx context.Context, c core.Caller, id string, change func([]record.SandboxPort) ([]record.SandboxPort, error)) error {
	return p.core.Update(ctx, func(tx *raftstore.Tx) error {
		row, err := Owned(tx, c, id)
		if err != nil {
			return err
		}
		if err := Unmanaged(row); err != nil {
			return err
		}
		row = row.Clone()
		if row.Ports, err = change(row.Ports); err != nil {
			return err
		}
		raftstore.Put(tx, record.Sandboxes, row)
		return nil
	})
}
