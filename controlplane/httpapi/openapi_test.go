package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/berth-cloud/berth/tier"
)

func TestDocumentIsValid(t *testing.T) {
	b, err := document(routes())
	if err != nil {
		t.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(b)
	if err != nil {
		t.Fatal(err)
	}
	// Validation includes every example against its schema.
	if err := doc.Validate(context.Background(), openapi3.EnableExamplesValidation()); err != nil {
		t.Error(err)
	}
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("openapi is %q", doc.OpenAPI)
	}
}

func TestDocumentIsTheSameEachTime(t *testing.T) {
	tier.Slow(t)
	first, err := document(routes())
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		again, err := document(routes())
		if err != nil {
			t.Fatal(err)
		}
		if string(again) != string(first) {
			t.Fatal("two documents of the same routes differ")
		}
	}
}

// TestRouterAndDocumentAgree compares the router's routes with the document's.
func TestRouterAndDocumentAgree(t *testing.T) {
	r := newRig(t)
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
			Summary     string `json:"summary"`
		} `json:"paths"`
	}
	raw, err := theDocument()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	heads := map[string]bool{}
	for _, rt := range r.api.engine.Routes() {
		path := ginParam.ReplaceAllString(rt.Path, "{$1}")
		if rt.Method == http.MethodHead {
			heads[path] = true
			continue
		}
		served[strings.ToLower(rt.Method)+" "+path] = true
		if _, ok := doc.Paths[path][strings.ToLower(rt.Method)]; !ok {
			t.Errorf("the document lacks %s %s", rt.Method, path)
		}
	}
	ids := map[string]string{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			at := method + " " + path
			if !served[at] {
				t.Errorf("the router lacks %s", at)
			}
			if method == "get" && !heads[path] {
				t.Errorf("%s answers no HEAD", path)
			}
			if op.Summary == "" || op.OperationID == "" {
				t.Errorf("%s has no summary or no operationId", at)
			}
			if other, taken := ids[op.OperationID]; taken {
				t.Errorf("%s and %s share the operationId %s", at, other, op.OperationID)
			}
			ids[op.OperationID] = at
		}
	}
	if len(served) != len(routes()) {
		t.Errorf("the router serves %d routes of a table of %d", len(served), len(routes()))
	}
}

func TestDocumentIsServed(t *testing.T) {
	r := newRig(t)
	doc, err := theDocument()
	if err != nil {
		t.Fatal(err)
	}
	w := r.call(http.MethodGet, "/openapi.json", "", "")
	if w.Code != http.StatusOK || w.Body.String() != string(doc) {
		t.Fatalf("status %d, %d bytes", w.Code, w.Body.Len())
	}
}

// Examples of errors are whole: those of quotas have what is used, and how much may be.
func TestExamplesOfErrorsHaveTheirFields(t *testing.T) {
	raw, err := theDocument()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			Responses map[string]struct {
				Content map[string]struct {
					Examples map[string]struct{ Value map[string]any }
				}
			}
		}
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"max apps reached": {"max", "active"}, "max webhook endpoints reached": {"max", "active"},
		"too many deliveries wait": {"max", "active"}, "max keys reached": {"max", "active"}, "max installations reached": {"max", "active"},
		"subscription not active": {"subscription_status"},
	}
	seen := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			for status, r := range op.Responses {
				for _, x := range r.Content["application/json"].Examples {
					message, _ := x.Value["error"].(string)
					for _, field := range want[message] {
						seen[message] = true
						if _, there := x.Value[field]; !there {
							t.Errorf("%s %s %s: %v has no %s", method, path, status, x.Value, field)
						}
					}
				}
			}
		}
	}
	if len(seen) != len(want) {
		t.Errorf("the document has only %v", seen)
	}
}
