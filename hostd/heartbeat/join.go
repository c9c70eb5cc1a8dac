package heartbeat

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/nodecert"
	"github.com/berth-cloud/berth/timescale"
)

// JoinRequest says which cluster to join, and as whom.
type JoinRequest struct {
	Peers    []string // replicas' peer ports, host:port; any one does
	Token    string   // one-time, from the control plane
	CASHA256 string   // hex SHA-256 of the cluster CA's certificate (DER)
	HostID   string
}

// Credentials are what a host has after joining, in PEM.
type Credentials struct {
	Certificate, Key, CA []byte
	Peers                []string
}

// ErrWrongCA means that the peer is not of the cluster that was named. The
// token has not been sent.
var ErrWrongCA = errors.New("peer does not belong to the cluster with this CA")

// Join trades a token for a certificate. The private key is made here and never
// leaves the host. The token is sent only to a replica whose certificate comes
// from the CA with the given digest.
func Join(ctx context.Context, in JoinRequest) (Credentials, error) {
	want, err := hex.DecodeString(strings.ToLower(strings.ReplaceAll(in.CASHA256, ":", "")))
	if err != nil || len(want) != sha256.Size {
		return Credentials{}, errors.New("ca-sha256: want the 64 hex digits that the control plane printed with the token")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Credentials{}, fmt.Errorf("make key: %w", err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: hostapi.HostPrefix + in.HostID},
	}, key)
	if err != nil {
		return Credentials{}, fmt.Errorf("make certificate request: %w", err)
	}
	var joined hostapi.Joined
	body := hostapi.Join{Token: in.Token, HostID: in.HostID, CSR: encodePEM("CERTIFICATE REQUEST", csr)}
	if err := joinByAny(ctx, in.Peers, want, body, &joined); err != nil {
		return Credentials{}, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Credentials{}, fmt.Errorf("encode key: %w", err)
	}
	c := Credentials{
		Certificate: []byte(joined.Certificate), CA: []byte(joined.CA), Peers: joined.Peers,
		Key: []byte(encodePEM("PRIVATE KEY", der)),
	}
	return c, c.check(want, in.HostID)
}

// errRefused is a replica's answer: asking another one would not change it.
var errRefused = errors.New("refused")

// joinByAny asks one replica after the other until one answers.
func joinByAny(ctx context.Context, peers []string, caDigest []byte, in hostapi.Join, out *hostapi.Joined) error {
	errs := []error{errors.New("no replica answered the join")}
	for _, peer := range peers {
		err := postJoin(ctx, peer, caDigest, in, out)
		if err == nil {
			return nil
		}
		err = fmt.Errorf("join by %s: %w", peer, err)
		if errors.Is(err, errRefused) {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func postJoin(ctx context.Context, peer string, caDigest []byte, in hostapi.Join, out *hostapi.Joined) error {
	ctx, cancel := context.WithTimeout(ctx, timescale.Limit(30*time.Second))
	defer cancel()
	raw, err := json.Marshal(in)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: pinned(caDigest)}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+peer+hostapi.PathJoin, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	switch {
	case resp.StatusCode == http.StatusServiceUnavailable:
		return fmt.Errorf("%s: %s", resp.Status, refusal(answer))
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%w with %s: %s", errRefused, resp.Status, refusal(answer))
	}
	return json.Unmarshal(answer, out)
}

// pinned trusts one CA, known by its digest alone: the peer sends the CA's
// certificate behind its own.
func pinned(caDigest []byte) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         hostapi.JoinServerName(caDigest), // only to choose the replica's certificate
		InsecureSkipVerify: true,                             //nolint:gosec // VerifyConnection verifies the chain against the pinned CA
		VerifyConnection: func(cs tls.ConnectionState) error {
			for _, c := range cs.PeerCertificates {
				if sum := sha256.Sum256(c.Raw); bytes.Equal(sum[:], caDigest) {
					pool := x509.NewCertPool()
					pool.AddCert(c)
					leaf := cs.PeerCertificates[0]
					if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool}); err != nil {
						return fmt.Errorf("%w: %w", ErrWrongCA, err)
					}
					if !hostapi.IsReplica(leaf.Subject.CommonName) {
						return fmt.Errorf("%w: it is %q", ErrWrongCA, leaf.Subject.CommonName)
					}
					return nil
				}
			}
			return ErrWrongCA
		},
	}
}

// check makes sure that what was handed out fits together before it is stored.
func (c Credentials) check(caDigest []byte, hostID string) error {
	// There are two while the cluster's authority is exchanged, and the certificate may be of
	// the other one: the replica, which was certain, says so.
	cas, err := nodecert.ParseCAs(c.CA)
	if err != nil {
		return fmt.Errorf("the CA in the answer: %w", err)
	}
	if !slices.ContainsFunc(cas, func(ca *x509.Certificate) bool { sum := sha256.Sum256(ca.Raw); return bytes.Equal(sum[:], caDigest) }) {
		return fmt.Errorf("%w: the CA in the answer is another one", ErrWrongCA)
	}
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return fmt.Errorf("the certificate in the answer is not for our key: %w", err)
	}
	pool := x509.NewCertPool()
	for _, ca := range cas {
		pool.AddCert(ca)
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return fmt.Errorf("the certificate in the answer: %w", err)
	}
	if !hostapi.IsHost(hostID)(pair.Leaf.Subject.CommonName) {
		return fmt.Errorf("the certificate in the answer is for %q", pair.Leaf.Subject.CommonName)
	}
	return nil
}

func encodePEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}
