package edge

import (
	"encoding/json"
	"html/template"
	"net/http"
)

var page = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{.Status}} {{.Message}}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:20vh auto;padding:0 1em;color:#222}h1{font-size:1.3em}p{color:#555}</style>
</head><body><h1>{{.Status}} · {{.Message}}</h1><p>{{.Detail}}</p></body></html>
`))

func writePage(w http.ResponseWriter, status int, message, detail string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	w.WriteHeader(status)
	_ = page.Execute(w, struct { // the browser may be gone
		Status          int
		Message, Detail string
	}{status, message, detail})
}

func writeJSON(w http.ResponseWriter, status int, message, detail string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	body := map[string]string{"error": message}
	if detail != "" {
		body["detail"] = detail
	}
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}
