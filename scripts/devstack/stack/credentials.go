package stack

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/certs"
	"github.com/berth-cloud/berth/timescale"
)

// Claims of the JWTs that the development stack signs.
const (
	devIssuer  = "berth-dev"
	devSubject = "developer"
)

// secrets of one run of the stack. They end with it.
type secrets struct {
	adminToken string
	jwtKey     string // HS256, shared with the replicas
}

func newSecrets() secrets {
	return secrets{adminToken: "bradm_" + randomHex(24), jwtKey: randomHex(32)}
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails, see crypto/rand
	return hex.EncodeToString(b)
}

// MintJWT signs a JWT for a subject. Each subject is a user with its own
// workspace.
func (s *Stack) MintJWT(subject string, valid time.Duration) (string, error) {
	return MintJWT(s.secrets.jwtKey, subject, subject+"@berth.invalid", valid)
}

// JWTKey is the variable with the key that signs JWTs.
const JWTKey = "BERTH_JWT_HS256_KEY"

// MintJWT signs a JWT with the key of a stack.
func MintJWT(key, subject, email string, valid time.Duration) (string, error) {
	now := time.Now()
	token := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss":   devIssuer,
		"sub":   subject,
		"email": email,
		"iat":   now.Unix(),
		"exp":   now.Add(valid).Unix(),
	})
	return token.SignedString([]byte(key))
}

// NewToken creates a user for the subject and an API key for its workspace,
// through the public API.
func (s *Stack) NewToken(ctx context.Context, subject string) (jwt, token string, err error) {
	jwt, err = s.MintJWT(subject, 30*24*time.Hour)
	if err != nil {
		return "", "", err
	}
	client, err := api.NewClient(nil, jwt, s.URLs...)
	if err != nil {
		return "", "", err
	}
	defer client.Close()
	client.Patience = electionTime
	created, err := client.CreateToken(ctx, api.CreateToken{Name: "devstack"})
	if err != nil {
		return "", "", fmt.Errorf("create an API key for %s: %w", subject, err)
	}
	return jwt, created.Key, nil
}

// Client calls the public API with the stack's API key, at any replica.
func (s *Stack) Client() (*api.Client, error) { return s.client(s.Token) }

// Admin calls the public API as the operator, at any replica.
func (s *Stack) Admin() (*api.Client, error) { return s.client(s.AdminToken) }

func (s *Stack) client(token string) (*api.Client, error) {
	c, err := api.NewClient(nil, token, s.URLs...)
	if err != nil {
		return nil, err
	}
	c.Patience = electionTime
	return c, nil
}

// electionTime is how long calls wait for a leader: several times the length of
// an election on a busy machine.
var electionTime = timescale.Limit(20 * time.Second)

// DBCA is the file with the certificate that clients of databases are to trust.
func (s *Stack) DBCA() string { return s.dbCA() }

// DomainCA is the file with the certificate that clients of apps' domains are to trust.
func (s *Stack) DomainCA() string { return filepath.Join(s.domainCADir(), certs.DevDomainCAFile) }

// DomainAddr is where a replica serves domains of apps.
func (s *Stack) DomainAddr() string { return s.address(s.replicaID(0), s.domainPort(0)) }

// WriteEnv writes what a shell needs to use the stack; only root may read it.
func (s *Stack) WriteEnv(path string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Written by make up at %s. To use it: set -a; . %s; set +a\n", time.Now().Format(time.RFC3339), path)
	for _, v := range [][2]string{
		{"BERTH_URL", s.URLs[0]},
		{"BERTH_URLS", strings.Join(s.URLs, ",")},
		{"BERTH_TOKEN", s.Token},
		{"BERTH_JWT", s.JWT},
		{JWTKey, s.secrets.jwtKey},
		{"BERTH_ADMIN_TOKEN", s.AdminToken},
		{"BERTH_PREVIEW_SUFFIX", s.previewSuffix()},
		{"BERTH_APP_SUFFIX", s.appSuffix()},
		{"BERTH_DB_DOMAIN", DBDomain},
		{"BERTH_DB_ADDR", s.Routers()[0]},
		{"BERTH_DB_ADDRS", strings.Join(s.Routers(), ",")},
		{"BERTH_DB_CA", s.DBCA()},
		{"BERTH_DOMAIN_ADDR", s.DomainAddr()},
		{"BERTH_DOMAIN_CA", s.DomainCA()},
	} {
		fmt.Fprintf(&b, "%s=%s\n", v[0], v[1])
	}
	// Written to a temporary file first: a reader sees the old stack or this one,
	// and the credentials are never in a file that others may read.
	return atomicfile.Swap(path, []byte(b.String()), 0o600)
}
