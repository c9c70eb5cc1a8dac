package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ErrorBody is the JSON of every response with status 400 or above, except 411,
// which has no body. Errors about quotas have more fields.
type ErrorBody struct {
	Error  string `json:"error"`
	Detail string `json:"detail,omitempty"`
}

// Error is a refusal by the service. Branch on Status: texts may change.
type Error struct {
	Status     int            // HTTP status
	Message    string         // "error" of the body, or the status text if there is none
	Detail     string         // "detail" of the body, may be empty
	RequestID  string         // quote it when you report a problem
	RetryAfter time.Duration  // how long the service asks to wait; 0 if it does not say
	Fields     map[string]any // the body's other members, such as "max" and "active"
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Message)
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	fmt.Fprintf(&b, " (status %d", e.Status)
	if e.RequestID != "" {
		b.WriteString(", request " + e.RequestID)
	}
	b.WriteString(")")
	return b.String()
}

// StatusOf returns the HTTP status of err, or 0 if the service did not answer.
func StatusOf(err error) int {
	var e *Error
	if errors.As(err, &e) {
		return e.Status
	}
	return 0
}

// maxErrorBody limits the size of an error's body, which a proxy may have written.
const maxErrorBody = 64 << 10

// errorFrom reads a response of status 400 or above.
func errorFrom(resp *http.Response) *Error {
	e := &Error{
		Status:     resp.StatusCode,
		RequestID:  resp.Header.Get(HeaderRequestID),
		RetryAfter: retryAfter(resp.Header.Get("Retry-After")),
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	var fields map[string]any
	if err == nil && json.Unmarshal(body, &fields) == nil {
		e.Message, _ = fields["error"].(string)
		e.Detail, _ = fields["detail"].(string)
		delete(fields, "error")
		delete(fields, "detail")
		if len(fields) > 0 {
			e.Fields = fields
		}
	}
	if e.Message == "" {
		e.Message = strings.ToLower(http.StatusText(resp.StatusCode))
	}
	if e.Message == "" {
		e.Message = "status " + strconv.Itoa(resp.StatusCode)
	}
	return e
}

// retryAfter reads a Retry-After header: seconds, or a date.
func retryAfter(v string) time.Duration {
	if v == "" {
		return 0
	}
	if s, err := strconv.Atoi(v); err == nil {
		return time.Duration(max(s, 0)) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}
