package edge

import (
	"encoding/json"
	"html/template"
	"maps"
	"net/http"
	"strings"

	"github.com/berth-cloud/berth/controlplane/stall"
)

// page is an answer of the edge itself to a browser.
type page struct {
	Status          int
	Message, Detail string
	Refresh         string // seconds after which the browser asks again; "": it does not
}

var pageTemplate = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">{{if .Refresh}}<meta http-equiv="refresh" content="{{.Refresh}}">{{end}}
<title>{{.Status}} {{.Message}}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:20vh auto;padding:0 1em;color:#222}h1{font-size:1.3em}p{color:#555}</style>
</head><body><h1>{{.Status}} · {{.Message}}</h1><p>{{.Detail}}</p></body></html>
`))

// refuse answers a browser with a page and a program with JSON, which has the fields too.
func (e *Edge) refuse(w http.ResponseWriter, r *http.Request, status int, message, detail string, fields ...map[string]any) {
	e.own(w, r)
	if wantsPage(r) {
		writePage(w, page{Status: status, Message: message, Detail: detail})
		return
	}
	writeJSON(w, status, message, detail, fields...)
}

// own begins an answer of the edge itself, which has the same headers whatever it says. The
// address of a preview contains a credential, so a Referer must not contain it.
func (e *Edge) own(w http.ResponseWriter, r *http.Request) {
	stall.Rest(w, r)
	h := w.Header()
	h.Set(headerRequestID, r.Header.Get(headerRequestID))
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
}

// wantsPage reports whether a browser navigates.
func wantsPage(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }

func writePage(w http.ResponseWriter, p page) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	w.WriteHeader(p.Status)
	_ = pageTemplate.Execute(w, p) // the browser may be gone
}

func writeJSON(w http.ResponseWriter, status int, message, detail string, fields ...map[string]any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	body := map[string]any{}
	for _, of := range fields {
		maps.Copy(body, of)
	}
	body["error"] = message
	if detail != "" {
		body["detail"] = detail
	}
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}
