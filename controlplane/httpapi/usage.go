package httpapi

import (
	"bytes"
	"context"
	"encoding/csv"
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
)

// Usage are the use cases of /v1/usage.
type Usage interface {
	// Get returns what the caller's workspace used in a month; "": in this one.
	Get(ctx context.Context, c core.Caller, month string) (api.Usage, error)
	OfWorkspace(ctx context.Context, workspaceID, month string) (api.Usage, error)
}

// Billing are the use cases of /v1/billing.
type Billing interface {
	Sync(ctx context.Context, c core.Caller) (api.BillingSync, error)
}

func (a *API) usage(c *gin.Context) error {
	return a.showUsage(c, func(ctx context.Context, month string) (api.Usage, error) {
		return a.cfg.Usage.Get(ctx, callerOf(c), month)
	})
}

func (a *API) workspaceUsage(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	return a.showUsage(c, func(ctx context.Context, month string) (api.Usage, error) {
		return a.cfg.Usage.OfWorkspace(ctx, id, month)
	})
}

const typeCSV = "text/csv; charset=utf-8"

// showUsage answers with JSON, or with CSV where the query or the request's Accept says so.
func (a *API) showUsage(c *gin.Context, get func(ctx context.Context, month string) (api.Usage, error)) error {
	q, err := queryOf(c, "month", "format")
	if err != nil {
		return err
	}
	format := q.Get("format")
	switch format {
	case "json", "csv":
	case "":
		if q.Has("format") {
			return invalid("invalid format", "want json or csv")
		}
		if strings.Contains(c.GetHeader("Accept"), "text/csv") {
			format = "csv"
		}
	default:
		return invalid("invalid format", "want json or csv")
	}
	if q.Has("month") && q.Get("month") == "" {
		return invalid("invalid month", "want YYYY-MM")
	}
	out, err := get(c.Request.Context(), q.Get("month"))
	if err != nil {
		return err
	}
	if format == "csv" {
		writeBytes(c, http.StatusOK, typeCSV, usageCSV(out))
		return nil
	}
	return ok(c, out)
}

// usageCSV is a line for each product and resource.
func usageCSV(u api.Usage) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	rows := [][]string{{"workspace_id", "month", "product", "resource", "quantity", "cost_microusd"}}
	for _, l := range u.Lines {
		rows = append(rows, []string{
			u.WorkspaceID, u.Month, l.Product, l.Resource, strconv.FormatFloat(l.Quantity, 'f', -1, 64), strconv.FormatInt(l.CostMicroUSD, 10),
		})
	}
	_ = w.WriteAll(rows) // to memory
	return b.Bytes()
}

func (a *API) syncBilling(c *gin.Context) error {
	if _, _, err := bind[api.Empty](c, maxJSONBody); err != nil {
		return err
	}
	out, err := a.cfg.Billing.Sync(c.Request.Context(), callerOf(c))
	if err != nil {
		return err
	}
	return ok(c, out)
}
