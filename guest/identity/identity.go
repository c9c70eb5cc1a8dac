// Package identity gives a guest its own identity. Two guests restored from one
// state share everything until this ran: names, keys, the state of the random
// number generator, and a clock that stopped when the state was captured.
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

// Guest is the guest that identities are given to. It is not for concurrent use.
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
	thaw           func() // the tenant's processes
	setClock       func(unixNanos int64) error
	setHostname    func([]byte) error
	setGateway     func(mac string) error
	cutConnections func(keep netip.AddrPort) (int, error)
}

// NewGuest prepares the guest for identities. thaw lets the tenant's processes go
// on, for the hooks: they speak to them.
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

// next is the number of an identity: higher than any before it, though the
// generation of a fork may be that of its parent, and that of a sandbox which
// woke is what it was. Only the same identity again, by its entropy, and that of
// a template's build have the same number again.
func (g *Guest) next(id *guestapi.Identity) uint64 {
	if id.Generation == 0 || g.has(id) {
		return max(g.number, id.Generation)
	}
	return max(g.number+1, id.Generation)
}

// has reports whether the guest has this identity already, by its entropy.
func (g *Guest) has(id *guestapi.Identity) bool { return bytes.Equal(id.Entropy, g.entropy) }

// Apply makes the guest id's. received is when the request arrived, so that the
// time spent since is not lost to the clock; keep is the peer of the connection
// that the identity came by. What it reports took effect; after an error some
// of it may have, and the whole is to be applied again.
func (g *Guest) Apply(id *guestapi.Identity, received time.Time, keep netip.AddrPort) (guestapi.IdentityConfirmation, error) {
	done := guestapi.IdentityConfirmation{Generation: id.Generation}
	if g.has(id) {
		err := g.again(id, received, &done)
		return done, err
	}
	// Random numbers come first: whatever runs meanwhile draws from them.
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
	// It never has fewer digits than the one before it, so that one write
	// replaces it: who watches the file reads it whole.
	if err := overwrite(g.root+guestapi.GenerationPath, fmt.Appendln(nil, number), 0o644); err != nil {
		return done, err
	}
	g.number, g.entropy = number, bytes.Clone(id.Entropy)
	return done, nil
}

// again is an identity that took effect before: the host asks because an answer
// was late, or because the clock can be no better than the message was quick.
// All else stays as it is: what connected since belongs to the new life, among
// it the host.
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

// Last is what an agent that starts again must know of the last identity.
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
