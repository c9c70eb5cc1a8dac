package api

// Usage is what a workspace has used in a month of UTC. What hosts have not told yet,
// about a minute's, is not in it.
type Usage struct {
	WorkspaceID string      `json:"workspace_id"`
	Month       string      `json:"month"` // YYYY-MM
	Begins      Time        `json:"begins"`
	Ends        Time        `json:"ends"`
	Lines       []UsageLine `json:"lines"` // by product and resource
	// CostMicroUSD is the sum of the lines'.
	CostMicroUSD int64 `json:"cost_microusd"`
	// CreditMicroUSD is what a month includes without a subscription; absent: there is no
	// such bound. BudgetMicroUSD is what may be used in a month at all.
	CreditMicroUSD *int64 `json:"credit_microusd,omitempty"`
	BudgetMicroUSD *int64 `json:"budget_microusd,omitempty"`
	// Paused says that this month's free credit is spent: compute is stopped.
	Paused bool `json:"paused"`
}

// UsageLine is one resource of one product.
type UsageLine struct {
	Product string `json:"product"` // sandbox, database, app
	// Resource is vcpu_seconds, cpu_seconds, memory_mib_seconds, disk_mib_seconds,
	// snapshot_mib_seconds, volume_mib_seconds or archive_mib_seconds.
	Resource     string  `json:"resource"`
	Quantity     float64 `json:"quantity"`      // in the unit that the resource names, to the millisecond
	CostMicroUSD int64   `json:"cost_microusd"` // by the prices of its time, in millionths of a USD
}

// BillingSync is the answer to a sync with the provider of payments.
type BillingSync struct {
	SubscriptionStatus string `json:"subscription_status"` // active, trialing, past_due, canceled; empty: there is no subscription
	Tier               string `json:"tier"`
	// Paused says that the month's free credit is spent. After an upgrade it is false at
	// once, and what was stopped can be started within a minute.
	Paused bool `json:"paused"`
}
