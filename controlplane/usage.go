package controlplane

import (
	"fmt"
	"net/url"
	"time"

	"github.com/berth-cloud/berth/controlplane/billing"
)

// Billing contains the settings of usage and money; docs/billing.md explains them.
type Billing struct {
	Prices        string        `env:"BERTH_PRICES"`                         // file with the prices; default: built in, for workspaces whose tier has a credit or a budget
	UsageInterval time.Duration `env:"BERTH_USAGE_INTERVAL" envDefault:"1m"` // between two questions to a host
	WarnPercent   int           `env:"BERTH_CREDIT_WARNING" envDefault:"80"` // of a month's free credit
	BillingSync   time.Duration `env:"BERTH_BILLING_SYNC" envDefault:"1h"`   // between two questions about a workspace's subscription, about
	StripeKey     string        `env:"BERTH_STRIPE_KEY"`                     // secret or restricted; empty: no provider of payments
	StripeURL     string        `env:"BERTH_STRIPE_URL" envDefault:"https://api.stripe.com"`
}

// validate checks the values that are set.
func (c *Billing) validate() error {
	if c.UsageInterval != 0 && (c.UsageInterval < time.Second || c.UsageInterval > time.Hour) {
		return fmt.Errorf("BERTH_USAGE_INTERVAL is %s, want 1s to 1h", c.UsageInterval)
	}
	if c.WarnPercent < 0 || c.WarnPercent > 100 {
		return fmt.Errorf("BERTH_CREDIT_WARNING is %d, want 1 to 100 percent", c.WarnPercent)
	}
	if c.BillingSync != 0 && (c.BillingSync < time.Minute || c.BillingSync > 24*time.Hour) {
		return fmt.Errorf("BERTH_BILLING_SYNC is %s, want 1m to 24h", c.BillingSync)
	}
	if c.StripeURL != "" {
		u, err := url.Parse(c.StripeURL)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" {
			return fmt.Errorf("BERTH_STRIPE_URL is %q, want a URL such as %s", c.StripeURL, billing.StripeURL)
		}
	}
	return nil
}

// payments returns the provider of payments; nil: none.
func (c *Billing) payments() billing.Provider {
	if c.StripeKey == "" {
		return nil
	}
	return &billing.Stripe{Key: c.StripeKey, URL: c.StripeURL}
}
