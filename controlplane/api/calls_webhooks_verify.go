package api

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Headers of a delivery. The last three are those of Standard Webhooks, by whose
// libraries it can be verified too.
const (
	HeaderWebhookEvent     = "X-Service-Event"     // its type
	HeaderWebhookDelivery  = "X-Service-Delivery"  // its id
	HeaderWebhookSignature = "X-Service-Signature" // t=<unix seconds>,v1=<hex>

	HeaderStandardWebhookID        = "Webhook-Id"
	HeaderStandardWebhookTimestamp = "Webhook-Timestamp"
	HeaderStandardWebhookSignature = "Webhook-Signature"
)

// WebhookTolerance is how far the time of a signature may be from the receiver's.
const WebhookTolerance = 5 * time.Minute

// ErrWebhookSignature is of a delivery that is not from the service, or not of now.
var ErrWebhookSignature = errors.New("invalid webhook signature")

// SignWebhook is the value of X-Service-Signature for a body that is sent at a time.
func SignWebhook(secret string, at time.Time, body []byte) string {
	t := strconv.FormatInt(at.Unix(), 10)
	return "t=" + t + ",v1=" + hex.EncodeToString(webhookMAC(secret, t, body))
}

func webhookMAC(secret, t string, body []byte) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(t + "."))
	mac.Write(body)
	return mac.Sum(nil)
}

// VerifyWebhook reads a delivery whose signature is right and not older than
// WebhookTolerance. The body is the request's, byte for byte. The error of one that is to
// be refused is ErrWebhookSignature.
func VerifyWebhook(secret string, header http.Header, body []byte, now time.Time) (*WebhookEvent, error) {
	t, signatures := parseWebhookSignature(header.Get(HeaderWebhookSignature))
	seconds, err := strconv.ParseInt(t, 10, 64)
	switch {
	case secret == "":
		return nil, errors.New("verify webhook: no secret")
	case err != nil || len(signatures) == 0:
		return nil, fmt.Errorf("%w: want t=<unix seconds>,v1=<hex>", ErrWebhookSignature)
	case now.Sub(time.Unix(seconds, 0)).Abs() > WebhookTolerance:
		return nil, fmt.Errorf("%w: it is of another time", ErrWebhookSignature)
	}
	want, ok := webhookMAC(secret, t, body), false
	for _, s := range signatures {
		got, err := hex.DecodeString(s)
		ok = ok || err == nil && hmac.Equal(got, want)
	}
	if !ok {
		return nil, fmt.Errorf("%w: it does not match", ErrWebhookSignature)
	}
	var e WebhookEvent
	if err := json.Unmarshal(body, &e); err != nil {
		return nil, fmt.Errorf("decode webhook: %w", err)
	}
	return &e, nil
}

// parseWebhookSignature splits a signature. Parts of other versions are left out.
func parseWebhookSignature(header string) (t string, signatures []string) {
	for part := range strings.SplitSeq(header, ",") {
		switch name, value, _ := strings.Cut(strings.TrimSpace(part), "="); name {
		case "t":
			t = value
		case "v1":
			signatures = append(signatures, value)
		}
	}
	return t, signatures
}
