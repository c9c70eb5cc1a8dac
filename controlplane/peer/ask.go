package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/telemetry"
)

// maxRefusal limits the size of a refusal, in bytes.
const maxRefusal = 64 << 10

// Ask posts in as JSON to another replica's peer port, with the request id of ctx and its
// trace. The caller closes the response body.
func Ask(ctx context.Context, transport http.RoundTripper, address, path string, in any) (*http.Response, error) {
	raw, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+path, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if id := hostapi.RequestID(ctx); id != "" {
		req.Header.Set(hostapi.HeaderRequestID, id)
	}
	telemetry.Inject(ctx, req.Header)
	return transport.RoundTrip(req)
}

// AskLeader asks the leader to do something that returns no result; the leader answers
// with 204. If the leader refuses, AskLeader returns the leader's *apierror.Error. It
// returns EUnavailable if there is no leader, if the leader does not answer, or if
// another replica takes the lead before the answer arrives.
func AskLeader(ctx context.Context, transport http.RoundTripper, leader func() (id, address string), path string, in any) error {
	id, address := leader()
	if address == "" {
		return apierror.Unavailable("there is no leader; an election may be under way", nil)
	}
	ctx, _, end := WhileLeads(ctx, leader, id, nil)
	defer end()
	resp, err := Ask(ctx, transport, address, path, in)
	if err != nil {
		return apierror.Unavailable("the leader does not answer", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNoContent {
		return nil
	}
	return readRefusal(resp)
}

// ErrNotLeading is returned by a replica that is asked to do what only the leader does.
var ErrNotLeading = apierror.Unavailable("this replica does not lead", nil)

// wireError is the body of a refusal between replicas.
type wireError struct {
	Code         apierror.Code  `json:"code"`
	Error        string         `json:"error"`
	Detail       string         `json:"detail,omitempty"`
	Fields       map[string]any `json:"fields,omitempty"`
	RetryAfterMS int64          `json:"retry_after_ms,omitempty"`
}

// Refuse answers another replica's request with an error.
func Refuse(w http.ResponseWriter, err error) {
	e := apierror.As(err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusConflict) // the code in the body tells the kind of error
	_ = json.NewEncoder(w).Encode(wireError{e.Code, e.Message, e.Detail, e.Fields, e.RetryAfter.Milliseconds()})
}

func readRefusal(resp *http.Response) error {
	var e wireError
	err := json.NewDecoder(io.LimitReader(resp.Body, maxRefusal)).Decode(&e)
	if err == nil && e.Code == "" {
		err = errors.New("no code")
	}
	if err != nil {
		return apierror.Unavailable("the leader does not answer", fmt.Errorf("status %d: %w", resp.StatusCode, err))
	}
	return &apierror.Error{Code: e.Code, Message: e.Error, Detail: e.Detail, Fields: e.Fields, RetryAfter: time.Duration(e.RetryAfterMS) * time.Millisecond}
}
