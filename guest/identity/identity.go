// Package identity gives a guest its own identity. Until then, two guests that
// were restored from one state share everything: names, keys, the state of the
// random number generator, and a clock that stopped when the state was captured.
package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/netcfg"
	"github.com/berth-cloud/berth/guest/proc"
)

// Guest applies identities to the guest. It is not for concurrent use.
type Guest struct {
	root   string      // of its files; "" in a guest
	groups proc.Groups // for the template's hooks
	system system

	number  uint64 // what the generation's file says
	entropy []byte // of the last identity; see next
	sent    int64  // unix time of the one that set the clock last
}

// system is what an identity changes in the kernel.
type system struct {
	addEntropy     func([]byte) error
	thaw           func() // the workload's processes
	setClock       func(unixNanos int64) error
	setHostname    func([]byte) error
	setGateway     func(mac string) error
	cutConnections func(keep netip.AddrPort) (int, error)
}

// NewGuest prepares the guest for identities. thaw resumes the workload's processes
// before the hooks run, which talk to them.
func NewGuest(groups proc.Groups, thaw func()) (*Guest, error) {
	return newGuest("", groups, system{
		addEntropy:     addEntropy,
		thaw:           thaw,
		setClock:       setClock,
		setHostname:    unix.Sethostname,
		setGateway:     netcfg.SetGatewayMAC,
		cutConnections: cutConnections,
	})
}

func newGuest(root string, groups proc.Groups, sys system) (*Guest, error) {
	g := &Guest{root: root, groups: groups, system: sys}
	if err := g.prepareFiles(); err != nil {
		return nil, err
	}
	path := root + guestapi.GenerationPath
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		err = overwrite(path, nil, 0o644) // for who watches it before the first identity
	}
	if err != nil {
		return nil, err
	}
	g.number, _ = strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64)
	return g, nil
}

// next is the number of an identity. It is higher than any before it, although a
// fork may have its parent's generation, and a sandbox that woke keeps its own.
// Only a repeated identity (its entropy tells) and that of a template's build
// have a number twice.
func (g *Guest) next(id *guestapi.Identity) uint64 {
	if id.Generation == 0 || g.has(id) {
		return max(g.number, id.Generation)
	}
	return max(g.number+1, id.Generation)
}

// has compares by entropy whether the guest already has this identity.
func (g *Guest) has(id *guestapi.Identity) bool { return bytes.Equal(id.Entropy, g.entropy) }

// Apply gives the guest the identity. received is when the request arrived: the
// time since is added to the clock. keep is the peer of the connection by which
// the identity came. After an error a part of the identity may be in effect;
// the caller applies the whole again.
func (g *Guest) Apply(id *guestapi.Identity, received time.Time, keep netip.AddrPort) (guestapi.IdentityConfirmation, error) {
	done := guestapi.IdentityConfirmation{Generation: id.Generation}
	if g.has(id) {
		err := g.again(id, received, &done)
		return done, err
	}
	// Random numbers come first: other processes draw them meanwhile.
	if err := g.system.addEntropy(id.Entropy); err != nil {
		return done, err
	}
	done.EntropyBits = 8 * len(id.Entropy)
	if err := g.step(id, received, &done); err != nil {
		return done, err
	}
	if id.ResetTCP {
		var err error
		if done.ConnectionsCut, err = g.system.cutConnections(keep); err != nil {
			return done, err
		}
	}
	if id.GatewayMAC != "" {
		if err := g.system.setGateway(id.GatewayMAC); err != nil {
			return done, err
		}
	}
	if err := g.writeNames(id); err != nil {
		return done, err
	}
	if err := g.writeHostKeys(id.SSHHostKeys); err != nil {
		return done, err
	}
	number := g.next(id)
	if err := g.runHooks(id, number); err != nil {
		return done, err
	}
	if err := g.remember(id); err != nil {
		return done, err
	}
	// It never has fewer digits than the one before it, so one write replaces it
	// and a reader never sees a part.
	if err := overwrite(g.root+guestapi.GenerationPath, fmt.Appendln(nil, number), 0o644); err != nil {
		return done, err
	}
	g.number, g.entropy = number, bytes.Clone(id.Entropy)
	return done, nil
}

// again applies an identity that is in effect: the host repeats it when an answer
// was lost, or took so long that the clock is off by as much. Only the clock is
// set. Connections that were opened since, the host's among them, stay.
func (g *Guest) again(id *guestapi.Identity, received time.Time, done *guestapi.IdentityConfirmation) error {
	done.EntropyBits = 8 * len(id.Entropy)
	if id.UnixNanos <= g.sent { // it was overtaken
		return nil
	}
	return g.step(id, received, done)
}

// step sets the clock to when the identity was sent, and what has passed since
// it arrived.
func (g *Guest) step(id *guestapi.Identity, received time.Time, done *guestapi.IdentityConfirmation) error {
	now := id.UnixNanos + int64(time.Since(received))
	done.ClockSteppedMS = (now - time.Now().UnixNano()) / int64(time.Millisecond)
	if err := g.system.setClock(now); err != nil {
		return err
	}
	g.sent = id.UnixNanos
	return nil
}

// setClock steps the wall clock.
func setClock(unixNanos int64) error {
	ts := unix.NsecToTimespec(unixNanos)
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	return nil
}

// Last is what a restarted agent must know of the last identity.
type Last struct {
	Generation uint64            `json:"generation"`
	Env        map[string]string `json:"env,omitempty"`
}

// lastPath is where an agent finds what the one before it confirmed.
const lastPath = guestapi.RunDir + "/identity.json"

// Last returns the zero value before the first identity.
func (g *Guest) Last() (Last, error) {
	var last Last
	raw, err := os.ReadFile(g.root + lastPath)
	if errors.Is(err, os.ErrNotExist) {
		return last, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &last)
	}
	if err != nil {
		return last, fmt.Errorf("read the last identity: %w", err)
	}
	return last, nil
}

func (g *Guest) remember(id *guestapi.Identity) error {
	raw, err := json.Marshal(Last{Generation: id.Generation, Env: id.Env})
	if err != nil {
		return err
	}
	return WriteFile(g.root+lastPath, raw, 0o600)
}
