// Package authn finds out who a request is from, and how many requests a
// workspace may make. httpapi calls Authenticator.Authenticate on each request
// and, for a tenant, Limiter.Allow.
package authn
