package pki

import (
	"crypto/tls"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/nodecert"
)

// joins are a replica's certificates for hosts that join. A join token names one authority,
// and may be older than the moment when another began to sign: as long as both count, such a
// host is shown a certificate of the one that it knows.
type joins struct {
	ca    *CA
	clock func() time.Time

	mu    sync.Mutex
	shown map[string]*tls.Certificate // by the ID of the authority
}

// joinCertAge is how long such a certificate is shown. It is valid for longer.
const joinCertAge = 24 * time.Hour

// TakeJoins lets hosts join whose token names any of the authorities that ca has the key of.
func (n *Node) TakeJoins(ca *CA, clock func() time.Time) {
	n.joins.Store(&joins{ca: ca, clock: clock, shown: map[string]*tls.Certificate{}})
}

// certificateFor is for tls.Config.GetCertificate.
func (n *Node) certificateFor(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if j := n.joins.Load(); j != nil && hello != nil {
		if id, ok := strings.CutSuffix(hello.ServerName, hostapi.JoinServerSuffix); ok {
			if cert := j.of(n, id); cert != nil {
				return cert, nil
			}
		}
	}
	return n.cert.ForServer(hello)
}

// of returns a certificate of an authority that did not sign the node's own, or nil: then that
// one has to do.
func (j *joins) of(n *Node, id string) *tls.Certificate {
	k := j.ca.now.Load()
	for _, by := range append([]signer{k.signer}, k.others...) {
		if nodecert.CAID(by.cert) != id || n.Leaf().CheckSignatureFrom(by.cert) == nil {
			continue
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		now := j.clock()
		if c := j.shown[id]; c != nil && now.Sub(SignedAt(c.Leaf)).Abs() < joinCertAge {
			return c
		}
		c, err := by.issue(n, now)
		if err != nil {
			return nil // the host is told that this is not its cluster, and asks another replica
		}
		j.shown[id] = c
		return c
	}
	return nil
}

// issue makes another certificate for a node.
func (by signer) issue(n *Node, now time.Time) (*tls.Certificate, error) {
	id, addresses, err := namesOf(n.Leaf())
	if err != nil {
		return nil, err
	}
	certPEM, keyPEM, err := by.issueFor(id, addresses, now)
	if err != nil {
		return nil, err
	}
	c, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	c.Certificate = append(c.Certificate, by.cert.Raw)
	return &c, nil
}
