package httpapi

// Document returns the OpenAPI document that /openapi.json serves, for the generator
// of the clients.
func Document() ([]byte, error) { return theDocument() }
