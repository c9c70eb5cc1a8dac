package guestio

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
)

const (
	entropyBytes = 256
	// minEntropyBits is what a guest must confirm: the size of the kernel's
	// own seed.
	minEntropyBits = 256
)

// NewIdentity is what makes a guest differ from all others that are restored
// from the same state. The clock is filled in when it is sent.
func (g *Guests) NewIdentity(rec *ledger.Record) (*guestapi.Identity, error) {
	entropy := make([]byte, entropyBytes)
	if _, err := io.ReadFull(g.cfg.Random, entropy); err != nil {
		return nil, fmt.Errorf("draw entropy: %w", err)
	}
	seed := rec.HostKey
	if len(seed) != ed25519.SeedSize {
		// A record of an older hostd: its guest gets new keys when it boots.
		var err error
		if seed, err = newHostKeySeed(g.cfg.Random); err != nil {
			return nil, err
		}
	}
	key, err := newHostKey(rec.Hostname, seed)
	if err != nil {
		return nil, err
	}
	return &guestapi.Identity{
		Generation:  rec.Generation,
		Entropy:     entropy,
		Hostname:    rec.Hostname,
		MachineID:   rec.MachineID,
		Env:         rec.Env,
		Nameservers: g.cfg.Nameservers,
		SSHHostKeys: []guestapi.SSHHostKey{key},
		GatewayMAC:  g.cfg.GatewayMAC.String(),
	}, nil
}

// NewSecrets draws what a guest keeps for its whole life: its machine id and the
// seed of its SSH host key.
func (g *Guests) NewSecrets() (machineID string, hostKey []byte, err error) {
	if machineID, err = newMachineID(g.cfg.Random); err != nil {
		return "", nil, err
	}
	hostKey, err = newHostKeySeed(g.cfg.Random)
	return machineID, hostKey, err
}

func newMachineID(random io.Reader) (string, error) {
	raw := make([]byte, 16)
	if _, err := io.ReadFull(random, raw); err != nil {
		return "", fmt.Errorf("draw machine id: %w", err)
	}
	return hex.EncodeToString(raw), nil
}

func newHostKeySeed(random io.Reader) ([]byte, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(random, seed); err != nil {
		return nil, fmt.Errorf("draw SSH host key: %w", err)
	}
	return seed, nil
}

func newHostKey(hostname string, seed []byte) (guestapi.SSHHostKey, error) {
	private := ed25519.NewKeyFromSeed(seed)
	public, ok := private.Public().(ed25519.PublicKey)
	if !ok {
		return guestapi.SSHHostKey{}, errors.New("make SSH host key: no ed25519 key")
	}
	block, err := ssh.MarshalPrivateKey(private, "root@"+hostname)
	if err != nil {
		return guestapi.SSHHostKey{}, fmt.Errorf("encode SSH host key: %w", err)
	}
	sshPublic, err := ssh.NewPublicKey(public)
	if err != nil {
		return guestapi.SSHHostKey{}, fmt.Errorf("encode SSH host key: %w", err)
	}
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(sshPublic)))
	return guestapi.SSHHostKey{
		Type:    "ed25519",
		Private: string(pem.EncodeToMemory(block)),
		Public:  line + " root@" + hostname + "\n",
	}, nil
}

// Identify gives the guest its identity and returns once it confirmed all of it.
func (g *Guests) Identify(ctx context.Context, slot int, id *guestapi.Identity) error {
	conf, err := g.agent(slot).Identity(ctx, *id)
	if err != nil {
		return fmt.Errorf("%w: give it its identity: %w", hosterr.ErrGuest, err)
	}
	if conf.Generation != id.Generation || conf.EntropyBits < minEntropyBits {
		return fmt.Errorf("%w: it confirmed generation %d and %d bits of entropy, want %d and %d",
			hosterr.ErrGuest, conf.Generation, conf.EntropyBits, id.Generation, minEntropyBits)
	}
	return nil
}
