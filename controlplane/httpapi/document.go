package httpapi

// Document is the OpenAPI document that /openapi.json serves, for the
// generator of the clients, which needs no server.
func Document() ([]byte, error) { return theDocument() }
