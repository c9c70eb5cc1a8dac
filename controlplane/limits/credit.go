package limits

import (
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Micro is money, in millionths of a USD.
type Micro int64

// microPerCent converts quotas, which are in cents.
const microPerCent = 10_000

// USD is an amount for an answer: it is exact to the cent and beyond.
func (m Micro) USD() float64 { return float64(m) / 1e6 }

// Month is where a workspace stands in a month.
type Month struct {
	Used       Micro
	CPUSeconds int

	Credit    Micro // that is included without a subscription
	HasCredit bool
	Budget    Micro
	HasBudget bool
	CPUMax    int
	HasCPUMax bool

	warnPercent int // of the credit: when its workspace is warned
}

// Month returns where a workspace stands in the month of now.
func (t *Tiers) Month(r raftstore.Reader, w *record.Workspace, now time.Time) (m Month) {
	q := t.Of(w)
	credit, hasCredit := limit(q.CreditCents)
	budget, hasBudget := limit(q.BudgetCents)
	m.CPUMax, m.HasCPUMax = limit(q.CPUSecondsPerMonth)
	// With a subscription, also one that is past due, what is used is paid for.
	m.Credit, m.HasCredit = Micro(credit)*microPerCent, hasCredit && w.SubscriptionStatus == ""
	m.warnPercent = defaultWarnPercent
	if t != nil && t.WarnPercent != 0 {
		m.warnPercent = t.WarnPercent
	}
	m.Budget, m.HasBudget = Micro(budget)*microPerCent, hasBudget
	if !m.HasCredit && !m.HasBudget && !m.HasCPUMax {
		return m // nothing is read, so that nothing gets in the way of creates
	}
	if u, ok := raftstore.Get(r, record.Usages, record.UsageID(w.ID, record.MonthOf(now))); ok {
		m.Used, m.CPUSeconds = Micro(u.MicroUSD()), int(u.CPUSeconds())
	}
	return m
}

// Exhausted reports whether the free credit is spent.
func (m Month) Exhausted() bool { return m.HasCredit && m.Used >= m.Credit }

const defaultWarnPercent = 80

// Nearly reports whether most of the free credit is spent.
func (m Month) Nearly() bool { return m.HasCredit && m.Used*100 >= m.Credit*Micro(m.warnPercent) }

// Sold reports whether a workspace's tier has to do with money.
func (t *Tiers) Sold(w *record.Workspace) bool {
	q := t.Of(w)
	_, credit := limit(q.CreditCents)
	_, budget := limit(q.BudgetCents)
	return credit || budget
}

// MayCreate refuses what creates compute or storage in a month that is spent.
func (t *Tiers) MayCreate(r raftstore.Reader, w *record.Workspace, now time.Time) error {
	return t.mayUse(r, w, now, "free quota exceeded")
}

// MayRun refuses what would run in a month that is spent.
func (t *Tiers) MayRun(r raftstore.Reader, w *record.Workspace, now time.Time) error {
	return t.mayUse(r, w, now, errCreditSpent)
}

// MayGoOn refuses what ran, and was not put to sleep, in a month whose credit is spent. A
// budget and a ceiling of processor time stop nothing.
func (t *Tiers) MayGoOn(r raftstore.Reader, w *record.Workspace, now time.Time) error {
	if m := t.Month(r, w, now); m.Exhausted() {
		return m.exhausted(errCreditSpent)
	}
	return nil
}

// errCreditSpent is the message for what may not run.
const errCreditSpent = "monthly free credit exhausted"

// exhausted is the refusal of a month whose credit is spent.
func (m Month) exhausted(message string) error {
	return &apierror.Error{
		Code: apierror.EQuota, Message: message,
		Detail: fmt.Sprintf("the month's free credit of %.2f USD is spent: the workspace is paused until it is upgraded or the next month begins, and nothing is deleted", m.Credit.USD()),
		Fields: map[string]any{"credit_usd": m.Credit.USD(), "cost_usd_used": m.Used.USD()},
	}
}

func (t *Tiers) mayUse(r raftstore.Reader, w *record.Workspace, now time.Time, message string) error {
	m := t.Month(r, w, now)
	switch {
	case m.Exhausted():
		return m.exhausted(message)
	case m.HasCPUMax && m.CPUSeconds >= m.CPUMax:
		return &apierror.Error{
			Code: apierror.ERateLimited, Message: "monthly cpu-seconds quota exceeded", Detail: "what runs goes on",
			Fields: map[string]any{"cpu_seconds_used": m.CPUSeconds, "cpu_seconds_max": m.CPUMax},
		}
	case m.HasBudget && m.Used >= m.Budget:
		return &apierror.Error{
			Code: apierror.ERateLimited, Message: "monthly budget exceeded", Detail: "what runs goes on",
			Fields: map[string]any{"budget_usd": m.Budget.USD(), "cost_usd_used": m.Used.USD()},
		}
	}
	return nil
}

// NextMonth is when the month of a time ends, in UTC.
func NextMonth(t time.Time) time.Time {
	t = t.UTC()
	return time.Date(t.Year(), t.Month()+1, 1, 0, 0, 0, 0, time.UTC)
}
