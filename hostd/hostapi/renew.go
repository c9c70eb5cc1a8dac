package hostapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// Renew asks for another certificate. The present one, by which the connection is
// authenticated, says for whom.
type Renew struct {
	CSR string `json:"csr"` // PEM
}

// Renewed is the new certificate.
type Renewed struct {
	Certificate string `json:"certificate"` // PEM
}

// maxRenewed limits the answer, in bytes.
const maxRenewed = 64 << 10

// renewalPatience is how long one replica may take: a machine that is off, or whose packets
// are dropped, must not use up the time of the others.
var renewalPatience = timescale.Limit(10 * time.Second)

// AskRenewal asks one replica after the other for another certificate, by their peer ports,
// until one answers.
func AskRenewal(ctx context.Context, peers []string, config *tls.Config, csrPEM []byte) ([]byte, error) {
	out, err := askAny[Renewed](ctx, "no replica renewed the certificate", peers, config, PathRenew, Renew{CSR: string(csrPEM)})
	return []byte(out.Certificate), err
}

// askAny posts in to one replica after the other, until one answers. The connections are not
// kept: they have the certificate that is replaced.
func askAny[Out any](ctx context.Context, failed string, peers []string, config *tls.Config, path string, in any) (out Out, err error) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	errs := []error{errors.New(failed)}
	for _, peer := range peers {
		if err = askOne(ctx, client, peer, path, in, &out); err == nil {
			return out, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", peer, err))
	}
	var none Out
	return none, errors.Join(errs...)
}

func askOne(ctx context.Context, client *http.Client, peer, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, renewalPatience)
	defer cancel()
	raw, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+peer+path, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxRenewed))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(answer))
	}
	return json.Unmarshal(answer, out)
}
