// Package service holds the use cases of the public API: each method checks its
// input, runs one transaction or one flow, and returns a domain value or an
// *apierror.Error. It knows nothing of HTTP: httpapi binds requests to these types and
// maps Error.Code to a status in one table.
package service
