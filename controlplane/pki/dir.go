package pki

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
)

// The files of a replica's directory. A host's has ca.crt, node.crt and
// node.key; an operator's ca.crt, operator.crt and operator.key.
const (
	FileCACert       = "ca.crt"
	FileCAKey        = "ca.key"
	FileNodeCert     = "node.crt"
	FileNodeKey      = "node.key"
	FileSealKey      = "seal.key"
	FileReplica      = "replica.json"
	FileOperatorCert = "operator.crt"
	FileOperatorKey  = "operator.key"
)

// Member is one replica: its id and the address of its peer port.
type Member struct {
	ID      string `json:"id"`
	Address string `json:"address"` // host:port
}

// Replica is what replica.json holds: who this replica is and whom it starts
// the cluster with. Members is empty for a replica that is added later: it
// waits until an operator adds it.
type Replica struct {
	Member
	Members []Member `json:"members,omitempty"`
}

// Validate refuses a member that could not be reached.
func (m Member) Validate() error {
	if err := ValidName(m.ID); err != nil {
		return fmt.Errorf("replica id: %w", err)
	}
	host, port, err := net.SplitHostPort(m.Address)
	if err != nil || host == "" || port == "" || port == "0" {
		return fmt.Errorf("replica %s: address %q: want host:port", m.ID, m.Address)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("replica %s: address %q: the other replicas cannot dial an unspecified address", m.ID, m.Address)
	}
	return nil
}

// InitCluster writes one directory for each replica under dir, and one for the
// first operator. Nothing is written when one of them exists already.
func InitCluster(dir string, members []Member, operator string, sealKey []byte, now time.Time) error {
	if len(members) == 0 {
		return errors.New("a cluster needs at least one replica")
	}
	seen := map[string]bool{}
	for _, m := range members {
		if err := m.Validate(); err != nil {
			return err
		}
		if seen[m.ID] || seen[m.Address] || m.ID == FileOperatorDir {
			return fmt.Errorf("replica %s at %s: id or address is taken", m.ID, m.Address)
		}
		seen[m.ID], seen[m.Address] = true, true
	}
	targets := []string{filepath.Join(dir, FileOperatorDir)}
	for _, m := range members {
		targets = append(targets, filepath.Join(dir, m.ID))
	}
	if err := noneExists(targets); err != nil {
		return err
	}
	ca, err := NewCA(now)
	if err != nil {
		return err
	}
	for _, m := range members {
		if err := writeReplica(filepath.Join(dir, m.ID), ca, Replica{Member: m, Members: members}, sealKey, now); err != nil {
			return err
		}
	}
	return writeOperator(filepath.Join(dir, FileOperatorDir), ca, operator, now)
}

// FileOperatorDir is the directory of the first operator's certificate.
const FileOperatorDir = "operator"

// AddReplica writes the directory of one more replica under dir, with the CA
// and the sealing key of the replica whose directory from is.
func AddReplica(dir, from string, m Member, now time.Time) error {
	if err := m.Validate(); err != nil {
		return err
	}
	target := filepath.Join(dir, m.ID)
	if err := noneExists([]string{target}); err != nil {
		return err
	}
	ca, err := LoadCA(from)
	if err != nil {
		return err
	}
	sealKey, err := os.ReadFile(filepath.Join(from, FileSealKey))
	if err != nil {
		return fmt.Errorf("read sealing key: %w", err)
	}
	return writeReplica(target, ca, Replica{Member: m}, sealKey, now)
}

// LoadCA reads the authority from a replica's directory.
func LoadCA(dir string) (*CA, error) {
	files, err := readAll(dir, FileCACert, FileCAKey)
	if err != nil {
		return nil, err
	}
	ca, err := ParseCA(files[0], files[1])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return ca, nil
}

// LoadNode reads a replica's or host's certificate from its directory.
func LoadNode(dir string) (*Node, error) { return loadNode(dir, FileNodeCert, FileNodeKey) }

// LoadOperator reads an operator's certificate from its directory.
func LoadOperator(dir string) (*Node, error) { return loadNode(dir, FileOperatorCert, FileOperatorKey) }

func loadNode(dir, cert, key string) (*Node, error) {
	files, err := readAll(dir, FileCACert, cert, key)
	if err != nil {
		return nil, err
	}
	n, err := ParseNode(files[0], files[1], files[2])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return n, nil
}

// LoadReplica reads replica.json.
func LoadReplica(dir string) (Replica, error) {
	path := filepath.Join(dir, FileReplica)
	raw, err := os.ReadFile(path)
	if err != nil {
		return Replica{}, fmt.Errorf("read replica: %w", err)
	}
	var r Replica
	if err := json.Unmarshal(raw, &r); err != nil {
		return Replica{}, fmt.Errorf("read %s: %w", path, err)
	}
	for _, m := range append([]Member{r.Member}, r.Members...) {
		if err := m.Validate(); err != nil {
			return Replica{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	return r, nil
}

func writeReplica(dir string, ca *CA, r Replica, sealKey []byte, now time.Time) error {
	host, _, err := net.SplitHostPort(r.Address)
	if err != nil {
		return fmt.Errorf("replica %s: %w", r.ID, err)
	}
	cert, key, err := ca.Issue(Identity{RoleReplica, r.ID}, []string{host}, now)
	if err != nil {
		return err
	}
	caKey, err := ca.KeyPEM()
	if err != nil {
		return err
	}
	about, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode replica: %w", err)
	}
	return writeDir(dir, map[string][]byte{
		FileCACert: ca.CertPEM(), FileCAKey: caKey,
		FileNodeCert: cert, FileNodeKey: key,
		FileSealKey: sealKey, FileReplica: append(about, '\n'),
	})
}

func writeOperator(dir string, ca *CA, name string, now time.Time) error {
	cert, key, err := ca.Issue(Identity{RoleOperator, name}, nil, now)
	if err != nil {
		return err
	}
	return writeDir(dir, map[string][]byte{FileCACert: ca.CertPEM(), FileOperatorCert: cert, FileOperatorKey: key})
}

// writeDir makes dir appear whole or not at all: it is filled under another
// name and renamed. Everything is for its owner alone: a key is in each.
func writeDir(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), ".new-*")
	if err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	defer os.RemoveAll(temp) // nothing is left of it after the rename
	for name, data := range files {
		if err := atomicfile.Write(filepath.Join(temp, name), data, 0o600); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	if err := os.Rename(temp, dir); err != nil {
		return fmt.Errorf("create %s: %w", dir, err)
	}
	if err := atomicfile.Sync(filepath.Dir(dir)); err != nil {
		return fmt.Errorf("create %s: %w", dir, err)
	}
	return nil
}

func noneExists(paths []string) error {
	for _, p := range paths {
		if _, err := os.Lstat(p); err == nil {
			return fmt.Errorf("%s exists; keys are never overwritten: %w", p, fs.ErrExist)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look for %s: %w", p, err)
		}
	}
	return nil
}

func readAll(dir string, names ...string) ([][]byte, error) {
	out := make([][]byte, len(names))
	for i, name := range names {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("read keys: %w", err)
		}
		out[i] = raw
	}
	return out, nil
}
