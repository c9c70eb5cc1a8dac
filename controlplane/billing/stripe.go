package billing

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/berth-cloud/berth/raftstore/record"
)

// StripeURL is Stripe's API.
const StripeURL = "https://api.stripe.com"

// stripeVersion is the version of the API that is spoken, so that an account's own
// default changes nothing.
const stripeVersion = "2024-06-20"

// MetadataWorkspace is the key of a customer's metadata whose value is the workspace's
// id. MetadataTier is that of a price's whose value is a tier; a price's lookup_key does
// as well.
const (
	MetadataWorkspace = "workspace_id"
	MetadataTier      = "tier"
)

// Stripe reads customers and their subscriptions from Stripe. It changes nothing there,
// so a restricted key that may read both is enough.
// https://docs.stripe.com/api/customers/search, https://docs.stripe.com/api/subscriptions/list
type Stripe struct {
	Key  string // secret or restricted
	URL  string // default StripeURL
	HTTP *http.Client
}

// Subscription implements Provider. A workspace may have several customers, such as one of
// each checkout, so whoever does not pay as the known one may as another.
func (s *Stripe) Subscription(ctx context.Context, workspaceID, customerID string) (Subscription, error) {
	var out Subscription
	rank := -1
	look := func(id string) error {
		found, r, err := s.best(ctx, id)
		if err == nil && r > rank {
			out, rank = found, r
		}
		return err
	}
	if customerID != "" {
		alive, err := s.belongs(ctx, customerID, workspaceID)
		switch {
		case err != nil:
			return Subscription{}, err
		case !alive:
			customerID = ""
		default:
			if err := look(customerID); err != nil {
				return Subscription{}, err
			}
		}
		if rank >= rankPaid {
			return out, nil
		}
	}
	others, err := s.search(ctx, workspaceID)
	if err != nil {
		return Subscription{}, err
	}
	for _, id := range others {
		if id == customerID {
			continue
		}
		if err := look(id); err != nil {
			return Subscription{}, err
		}
	}
	return out, nil
}

type stripeCustomer struct {
	ID       string            `json:"id"`
	Deleted  bool              `json:"deleted"`
	Metadata map[string]string `json:"metadata"`
}

// belongs reports whether a customer that was found before is the workspace's still.
func (s *Stripe) belongs(ctx context.Context, customerID, workspaceID string) (bool, error) {
	var c stripeCustomer
	status, err := s.get(ctx, "/v1/customers/"+url.PathEscape(customerID), nil, &c)
	if status == http.StatusNotFound {
		return false, nil
	}
	return err == nil && !c.Deleted && c.Metadata[MetadataWorkspace] == workspaceID, err
}

// search finds the customers of a workspace, ten at most. Stripe's index may be a minute
// behind.
func (s *Stripe) search(ctx context.Context, workspaceID string) (ids []string, err error) {
	if strings.ContainsAny(workspaceID, `'"\`) {
		return nil, nil
	}
	var found struct {
		Data []stripeCustomer `json:"data"`
	}
	q := url.Values{"query": {fmt.Sprintf("metadata['%s']:'%s'", MetadataWorkspace, workspaceID)}, "limit": {"10"}}
	if _, err := s.get(ctx, "/v1/customers/search", q, &found); err != nil {
		return nil, err
	}
	for _, c := range found.Data {
		if !c.Deleted && c.Metadata[MetadataWorkspace] == workspaceID { // the search ignores case
			ids = append(ids, c.ID)
		}
	}
	return ids, nil
}

type stripeSubscription struct {
	Status string `json:"status"`
	Items  struct {
		Data []struct {
			Price struct {
				LookupKey string            `json:"lookup_key"`
				Metadata  map[string]string `json:"metadata"`
			} `json:"price"`
		} `json:"data"`
	} `json:"items"`
}

// rankPaid is the least rank of what gives a tier.
const rankPaid = 3

// statuses are those of Stripe by what they are here, and by rank: of several
// subscriptions, the best counts. One that was never paid for is none.
var statuses = map[string]struct {
	status record.SubscriptionStatus
	rank   int
}{
	"active": {record.SubscriptionActive, 4}, "trialing": {record.SubscriptionTrialing, rankPaid},
	"past_due": {record.SubscriptionPastDue, 2}, "unpaid": {record.SubscriptionPastDue, 2}, "paused": {record.SubscriptionPastDue, 2},
	"canceled": {record.SubscriptionCanceled, 1},
}

// best returns the best of a customer's subscriptions, and its rank; 0: there is none.
func (s *Stripe) best(ctx context.Context, customerID string) (out Subscription, rank int, err error) {
	var list struct {
		Data []stripeSubscription `json:"data"`
	}
	q := url.Values{"customer": {customerID}, "status": {"all"}, "limit": {"100"}}
	if _, err := s.get(ctx, "/v1/subscriptions", q, &list); err != nil {
		return Subscription{}, 0, err
	}
	out = Subscription{CustomerID: customerID}
	for _, sub := range list.Data { // the latest first
		known, ok := statuses[sub.Status]
		if !ok || known.rank <= rank {
			continue
		}
		rank, out.Status, out.Tier = known.rank, known.status, ""
		for _, item := range sub.Items.Data {
			if out.Tier = item.Price.Metadata[MetadataTier]; out.Tier == "" {
				out.Tier = item.Price.LookupKey
			}
			if out.Tier != "" {
				break
			}
		}
	}
	return out, rank, nil
}

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 4 << 20

// get reads one object. The key is never part of an error.
func (s *Stripe) get(ctx context.Context, path string, q url.Values, out any) (status int, err error) {
	base := s.URL
	if base == "" {
		base = StripeURL
	}
	address := strings.TrimSuffix(base, "/") + path
	if len(q) > 0 {
		address += "?" + q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errProvider, err)
	}
	req.SetBasicAuth(s.Key, "")
	req.Header.Set("Stripe-Version", stripeVersion)
	client := s.HTTP
	if client == nil {
		client = defaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errProvider, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return resp.StatusCode, fmt.Errorf("%w: read answer: %w", errProvider, err)
	}
	if resp.StatusCode != http.StatusOK {
		var refusal struct {
			Error struct {
				Type string `json:"type"`
				Code string `json:"code"`
			} `json:"error"`
		}
		_ = json.Unmarshal(raw, &refusal) // a proxy's answer is no JSON
		if resp.StatusCode == http.StatusTooManyRequests {
			return resp.StatusCode, fmt.Errorf("%w: %w", errProvider, errTooMuch)
		}
		return resp.StatusCode, fmt.Errorf("%w: status %d %s %s", errProvider, resp.StatusCode, refusal.Error.Type, refusal.Error.Code)
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return resp.StatusCode, fmt.Errorf("%w: decode answer: %w", errProvider, err)
	}
	return resp.StatusCode, nil
}

// defaultClient follows no redirect: the key is for one host alone.
var defaultClient = &http.Client{
	Timeout:       20 * time.Second,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}
