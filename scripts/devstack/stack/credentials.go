package stack

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/timescale"
)

// What the development stack signs its own JWTs with.
const (
	devIssuer  = "berth-dev"
	devSubject = "developer"
)

// secrets of one run of the stack. Nothing outlives it.
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

// MintJWT signs a JWT for a subject: another subject is another user, with a
// workspace of its own.
func (s *Stack) MintJWT(subject string, valid time.Duration) (string, error) {
	now := time.Now()
	token := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss":   devIssuer,
		"sub":   subject,
		"email": subject + "@berth.invalid",
		"iat":   now.Unix(),
		"exp":   now.Add(valid).Unix(),
	})
	return token.SignedString([]byte(s.secrets.jwtKey))
}

// NewToken makes a user of the subject and an API key for its workspace,
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

// Client speaks the public API with the stack's API key, through every replica.
func (s *Stack) Client() (*api.Client, error) { return s.client(s.Token) }

// Admin speaks the public API as the operator, through every replica.
func (s *Stack) Admin() (*api.Client, error) { return s.client(s.AdminToken) }

func (s *Stack) client(token string) (*api.Client, error) {
	c, err := api.NewClient(nil, token, s.URLs...)
	if err != nil {
		return nil, err
	}
	c.Patience = electionTime
	return c, nil
}

// electionTime is for how long calls wait for a leader. On a machine whose
// processors are taken it is several times what an election needs.
var electionTime = timescale.Limit(20 * time.Second)

// WriteEnv writes what a shell needs to use the stack; only root may read it.
func (s *Stack) WriteEnv(path string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Written by make up at %s. To use it: set -a; . %s; set +a\n", time.Now().Format(time.RFC3339), path)
	for _, v := range [][2]string{
		{"BERTH_URL", s.URLs[0]},
		{"BERTH_URLS", strings.Join(s.URLs, ",")},
		{"BERTH_TOKEN", s.Token},
		{"BERTH_JWT", s.JWT},
		{"BERTH_ADMIN_TOKEN", s.AdminToken},
		{"BERTH_PREVIEW_SUFFIX", previewSuffix},
	} {
		fmt.Fprintf(&b, "%s=%s\n", v[0], v[1])
	}
	// A file of its own first: a reader sees the old stack or this one, and
	// nobody sees the credentials in a file that they may read.
	return atomicfile.Swap(path, []byte(b.String()), 0o600)
}
