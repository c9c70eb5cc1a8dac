package webhook

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

const maxURL = 2048 // bytes

// forDevelopment begins the end of a refusal whose reader may have a stack to try things on.
const forDevelopment = "for local development, BERTH_WEBHOOK_ALLOW_PRIVATE=true in the control plane's environment allows"

var errPrivateURL = apierror.Invalid("url is not public", "internal and private-network addresses are refused; %s them", forDevelopment)

// checkURL refuses a URL that obviously cannot be an endpoint. The addresses of a host
// name are checked when they are dialled.
func (s *Webhooks) checkURL(raw string) error {
	if raw == "" {
		return &apierror.Error{Code: apierror.EInvalid, Message: "url is required"}
	}
	u, err := url.Parse(raw)
	switch {
	case len(raw) > maxURL:
		return apierror.Invalid("invalid url", "at most %d bytes", maxURL)
	case err != nil || u.Opaque != "":
		return apierror.Invalid("invalid url", "it cannot be parsed")
	case u.Scheme != "https" && (u.Scheme != "http" || !s.cfg.AllowPrivate):
		if s.cfg.AllowPrivate {
			return apierror.Invalid("invalid url", "it must begin with https:// or http://")
		}
		return apierror.Invalid("invalid url", "it must begin with https://; %s http:// too", forDevelopment)
	case u.Hostname() == "" || !validPort(u.Port()):
		return apierror.Invalid("invalid url", "it has no host, or no port that could be")
	case u.User != nil || u.Fragment != "":
		return apierror.Invalid("invalid url", "it must not have a user, a password or a fragment")
	case s.cfg.AllowPrivate:
		return nil
	}
	if a, err := netip.ParseAddr(u.Hostname()); err == nil {
		if !Public(a) {
			return errPrivateURL
		}
		return nil
	}
	if PrivateName(u.Hostname()) {
		return errPrivateURL
	}
	return nil
}

func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return port == "" || err == nil && n > 0
}

// eventNames checks event types to subscribe to. It returns each type once, in the order of
// api.WebhookEventTypes.
func eventNames(in []api.WebhookEventType) ([]string, error) {
	var out []string
	for _, t := range api.WebhookEventTypes() {
		if slices.Contains(in, t) {
			out = append(out, string(t))
		}
	}
	for _, t := range in {
		if !slices.Contains(out, string(t)) {
			return nil, apierror.Invalid("unknown event type", "GET /v1/webhooks/events lists those that there are")
		}
	}
	return out, nil
}
