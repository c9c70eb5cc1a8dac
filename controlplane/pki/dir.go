package pki

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/nodecert"
)

// Files in the directory of a replica. A host's directory has ca.crt, node.crt and
// node.key; a router's has these and router.json; an operator's has ca.crt, operator.crt
// and operator.key.
const (
	FileCACert       = nodecert.FileCA
	FileCAKey        = "ca.key"
	FileNodeCert     = nodecert.FileCert
	FileNodeKey      = nodecert.FileKey
	FileSealKey      = "seal.key"
	FileReplica      = "replica.json"
	FileRouter       = "router.json"
	FileOperatorCert = "operator.crt"
	FileOperatorKey  = "operator.key"
)

// Member is one replica: its id and the address of its peer port.
type Member struct {
	ID      string `json:"id"`
	Address string `json:"address"` // host:port
}

// Replica is the content of replica.json: this replica, and the members with which it
// starts the cluster. Members is empty for a replica that is added later; it waits until
// an operator adds it.
type Replica struct {
	Member
	Members []Member `json:"members,omitempty"`
}

// Validate returns an error if the id is not a valid name or if other replicas could not
// dial the address.
func (m Member) Validate() error {
	if err := ValidName(m.ID); err != nil {
		return fmt.Errorf("replica id: %w", err)
	}
	host, port, err := net.SplitHostPort(m.Address)
	// A name of DNS has at most 253 characters. A replica at an address that nobody can dial
	// would be a member all the same.
	number, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || len(host) > 253 || strings.ContainsFunc(host, noHost) || perr != nil || number == 0 {
		return fmt.Errorf("replica %s: address %.100q: want host:port", m.ID, m.Address)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("replica %s: address %q: the other replicas cannot dial an unspecified address", m.ID, m.Address)
	}
	return nil
}

// noHost reports whether neither a host name nor an address has a character.
func noHost(r rune) bool {
	return r != '.' && r != '-' && r != '_' && r != ':' && r != '%' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
}

// InitCluster writes one directory under dir for each replica and one for the first
// operator. It writes nothing if one of them already exists.
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

// AddOperator writes a directory with a new certificate for an operator under dir, beside those
// of members. The CA in the directory of a replica, from, signs it.
func AddOperator(dir, from, name string, now time.Time) error {
	if err := ValidName(name); err != nil {
		return fmt.Errorf("operator: %w", err)
	}
	target := filepath.Join(dir, FileOperatorDir)
	if err := noneExists([]string{target}); err != nil {
		return err
	}
	ca, err := LoadCA(from)
	if err != nil {
		return err
	}
	return writeOperator(target, ca, name, now)
}

// FileOperatorDir is the name of the directory with an operator's certificate.
const FileOperatorDir = "operator"

// AddReplica writes the directory of one more replica under dir. It copies the CA and the
// sealing key from the directory of an existing replica, from.
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

// Router is the content of router.json: a database router and the replicas that it asks.
type Router struct {
	ID       string   `json:"id"`
	Replicas []Member `json:"replicas"`
}

// AddRouter writes the directory of a database router under dir. The CA in the directory
// of a replica, from, signs the certificate. The router's directory contains neither the
// CA's key nor the sealing key. replicas are the replicas that the router asks; by
// default those that the cluster started with.
func AddRouter(dir, from, name string, replicas []Member, now time.Time) error {
	if err := ValidName(name); err != nil {
		return fmt.Errorf("router: %w", err)
	}
	if len(replicas) == 0 {
		about, err := LoadReplica(from)
		if err != nil {
			return err
		}
		replicas = about.Members
	}
	if len(replicas) == 0 {
		return fmt.Errorf("router %s: %s does not tell the cluster's replicas: name them", name, filepath.Join(from, FileReplica))
	}
	for _, m := range replicas {
		if err := m.Validate(); err != nil {
			return fmt.Errorf("router %s: %w", name, err)
		}
	}
	target := filepath.Join(dir, name)
	if err := noneExists([]string{target}); err != nil {
		return err
	}
	ca, err := LoadCA(from)
	if err != nil {
		return err
	}
	cert, key, err := ca.Issue(Identity{RoleRouter, name}, nil, now)
	if err != nil {
		return err
	}
	about, err := json.MarshalIndent(Router{ID: name, Replicas: replicas}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode router: %w", err)
	}
	return writeDir(target, map[string][]byte{
		FileCACert: ca.CertPEM(), FileNodeCert: cert, FileNodeKey: key, FileRouter: append(about, '\n'),
	})
}

// AddHost writes a directory with a new certificate for a host under dir. The CA in the
// directory of a replica, from, signs it. AddHost is for a host with an expired
// certificate, which can neither renew the certificate nor join again.
func AddHost(dir, from, name string, now time.Time) error {
	if err := ValidName(name); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	target := filepath.Join(dir, name)
	if err := noneExists([]string{target}); err != nil {
		return err
	}
	ca, err := LoadCA(from)
	if err != nil {
		return err
	}
	cert, key, err := ca.Issue(Identity{RoleHost, name}, nil, now)
	if err != nil {
		return err
	}
	return writeDir(target, map[string][]byte{FileCACert: ca.CertPEM(), FileNodeCert: cert, FileNodeKey: key})
}

// LoadRouter reads router.json.
func LoadRouter(dir string) (Router, error) {
	path := filepath.Join(dir, FileRouter)
	raw, err := os.ReadFile(path)
	if err != nil {
		return Router{}, fmt.Errorf("read router: %w", err)
	}
	var r Router
	if err := json.Unmarshal(raw, &r); err != nil {
		return Router{}, fmt.Errorf("read %s: %w", path, err)
	}
	for _, m := range r.Replicas {
		if err := m.Validate(); err != nil {
			return Router{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	return r, nil
}

// LoadCA reads the authority from a replica's directory.
func LoadCA(dir string) (*CA, error) {
	files, err := readAll(dir, FileCACert, FileCAKey)
	if err != nil {
		return nil, err
	}
	ca, err := parseCA(files[0], files[1])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return ca, nil
}

// LoadNode reads a replica's, host's or router's certificate from its directory.
func LoadNode(dir string) (*Node, error) {
	files, err := readAll(dir, FileCACert)
	if err != nil {
		return nil, err
	}
	cert, key, err := nodecert.Read(dir)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	n, err := parseNode(dir, files[0], cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return n, nil
}

// Reissue replaces a replica's certificate, which is of an authority that does not count any
// more, by one for the same replica. It is for a replica that was off while the CA was
// exchanged: having the CA's key, it needs nobody's leave.
func Reissue(dir string, ca *CA, now time.Time) error {
	oldPEM, oldKey, err := nodecert.Read(dir)
	if err != nil {
		return fmt.Errorf("read keys: %w", err)
	}
	old, err := tls.X509KeyPair(oldPEM, oldKey)
	if err != nil {
		return fmt.Errorf("%s: certificate and key: %w", dir, err)
	}
	id, addresses, err := namesOf(old.Leaf)
	if err != nil {
		return err
	}
	if id.Role != RoleReplica {
		return fmt.Errorf("%s: the certificate is of %s, not of a replica", dir, id.CommonName())
	}
	cert, key, err := ca.Issue(id, addresses, now)
	if err != nil {
		return err
	}
	// The old pair stays: the one that was issued last counts (nodecert.Read).
	if err := atomicfile.Write(filepath.Join(dir, nodecert.FileRenewed), append(cert, key...), 0o600); err != nil {
		return fmt.Errorf("write certificate: %w", err)
	}
	return nil
}

// LoadOperator reads an operator's certificate from its directory.
func LoadOperator(dir string) (*Node, error) {
	files, err := readAll(dir, FileCACert, FileOperatorCert, FileOperatorKey)
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

// writeDir creates dir atomically: it fills a directory under another name and renames
// it. Only the owner may read the files, because every directory contains a key.
func writeDir(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), ".new-*")
	if err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	defer os.RemoveAll(temp) // no effect after the rename
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
