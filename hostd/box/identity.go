package box

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/ledger"
)

const (
	entropyBytes = 256
	// minEntropyBits is what a guest must confirm: the size of the kernel's
	// own seed.
	minEntropyBits = 256
)

// newIdentity is what makes a guest another one than all that were restored
// from the same state. The clock is filled in when it is sent.
func newIdentity(rec *ledger.Record, random io.Reader, gateway net.HardwareAddr, nameservers []string) (*guestapi.Identity, error) {
	entropy := make([]byte, entropyBytes)
	if _, err := io.ReadFull(random, entropy); err != nil {
		return nil, fmt.Errorf("draw entropy: %w", err)
	}
	key, err := newHostKey(rec.Hostname, random)
	if err != nil {
		return nil, err
	}
	return &guestapi.Identity{
		Generation:  rec.Generation,
		Entropy:     entropy,
		Hostname:    rec.Hostname,
		MachineID:   rec.MachineID,
		Env:         rec.Env,
		Nameservers: nameservers,
		SSHHostKeys: []guestapi.SSHHostKey{key},
		GatewayMAC:  gateway.String(),
	}, nil
}

func newMachineID(random io.Reader) (string, error) {
	raw := make([]byte, 16)
	if _, err := io.ReadFull(random, raw); err != nil {
		return "", fmt.Errorf("draw machine id: %w", err)
	}
	return hex.EncodeToString(raw), nil
}

func newHostKey(hostname string, random io.Reader) (guestapi.SSHHostKey, error) {
	public, private, err := ed25519.GenerateKey(random)
	if err != nil {
		return guestapi.SSHHostKey{}, fmt.Errorf("make SSH host key: %w", err)
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

// identify gives the guest its identity and returns once it confirmed all of it.
func (h *Host) identify(ctx context.Context, slot int, id *guestapi.Identity) error {
	conf, err := h.guest(slot).Identity(ctx, *id)
	if err != nil {
		return fmt.Errorf("%w: give it its identity: %w", ErrGuest, err)
	}
	if conf.Generation != id.Generation || conf.EntropyBits < minEntropyBits {
		return fmt.Errorf("%w: it confirmed generation %d and %d bits of entropy, want %d and %d",
			ErrGuest, conf.Generation, conf.EntropyBits, id.Generation, minEntropyBits)
	}
	return nil
}
