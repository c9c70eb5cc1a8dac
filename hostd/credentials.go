package hostd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/heartbeat"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// The files of a PKI directory. They are the same for a replica.
const (
	fileCA    = "ca.crt"
	fileCert  = "node.crt"
	fileKey   = "node.key"
	filePeers = "peers" // one host:port a line
)

// credentials are who the host is in the cluster.
type credentials struct {
	cert  tls.Certificate
	ca    *x509.CertPool
	peers []string // told at join, or by the leader since
}

func loadCredentials(dir, hostID string) (credentials, error) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, fileCert), filepath.Join(dir, fileKey))
	if errors.Is(err, fs.ErrNotExist) {
		return credentials{}, fmt.Errorf("this host has not joined a cluster: there is no certificate in %s (make a join token on the control plane, then: hostd join --help)", dir)
	}
	if err != nil {
		return credentials{}, fmt.Errorf("load the host's certificate: %w", err)
	}
	if cn := cert.Leaf.Subject.CommonName; !hostapi.IsHost(hostID)(cn) {
		return credentials{}, fmt.Errorf("the certificate in %s is for %q and BERTH_AGENT_ID is %q: correct one of them, or join as this id", dir, cn, hostID)
	}
	raw, err := os.ReadFile(filepath.Join(dir, fileCA))
	if err != nil {
		return credentials{}, fmt.Errorf("load the cluster's CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return credentials{}, fmt.Errorf("%s holds no PEM certificate", filepath.Join(dir, fileCA))
	}
	peers, err := loadPeers(dir)
	if err != nil {
		return credentials{}, err
	}
	return credentials{cert: cert, ca: pool, peers: peers}, nil
}

// loadPeers reads where the replicas are, as far as this host was told: none
// where it has not joined.
func loadPeers(dir string) ([]string, error) {
	peers, err := os.ReadFile(filepath.Join(dir, filePeers))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load the replicas' addresses: %w", err)
	}
	return strings.Fields(string(peers)), nil
}

// hostIDOf reads the host's id from its certificate.
func hostIDOf(dir string) (string, error) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, fileCert), filepath.Join(dir, fileKey))
	if err != nil {
		return "", err
	}
	id, ok := strings.CutPrefix(cert.Leaf.Subject.CommonName, hostapi.HostPrefix)
	if !ok {
		return "", fmt.Errorf("the certificate in %s is for %q, which is no host", dir, cert.Leaf.Subject.CommonName)
	}
	return id, nil
}

// Join obtains the host's certificate and stores it. A directory that holds one
// already is left alone: a second join would leave the first identity without
// an owner.
func Join(ctx context.Context, dir string, in heartbeat.JoinRequest) error {
	if !validHostID.MatchString(in.HostID) {
		return fmt.Errorf("agent id %q: want 1 to 8 characters of a-z and 0-9", in.HostID)
	}
	if _, err := os.Stat(filepath.Join(dir, fileCert)); err == nil {
		return fmt.Errorf("%s holds a certificate already: this host has joined (to join anew, remove the agent on the control plane and the directory here)", dir)
	}
	// Before the token is spent.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of certificates: %w", err)
	}
	c, err := heartbeat.Join(ctx, in)
	if err != nil {
		return err
	}
	// The certificate last: it is what says that the rest is complete.
	for _, f := range []struct {
		name string
		data []byte
	}{
		{fileCA, c.CA}, {filePeers, []byte(strings.Join(c.Peers, "\n") + "\n")}, {fileKey, c.Key}, {fileCert, c.Certificate},
	} {
		if err := atomicfile.Write(filepath.Join(dir, f.name), f.data, 0o600); err != nil {
			return fmt.Errorf("store the host's certificate: %w", err)
		}
	}
	return nil
}

// lockFile takes a lock that ends with the process, or fails at once.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}
