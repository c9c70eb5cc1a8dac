package service

import "context"

// Identity are the use cases of /v1/me. Every one needs a JWT.
type Identity struct{}

// Me returns the signed-in user.
func (s *Identity) Me(ctx context.Context, c Caller) (Profile, error) {
	return Profile{}, &Error{Code: ENotImplemented, Message: "not implemented"}
}

// SetCurrentOrg makes one of the user's workspaces the one that later JWT requests act in.
func (s *Identity) SetCurrentOrg(ctx context.Context, c Caller, workspaceID string) (Profile, error) {
	return Profile{}, &Error{Code: ENotImplemented, Message: "not implemented"}
}

// CreateToken makes an API key of the current workspace; its Key is shown only here.
func (s *Identity) CreateToken(ctx context.Context, c Caller, name string) (Token, error) {
	return Token{}, &Error{Code: ENotImplemented, Message: "not implemented"}
}

// ListTokens lists the current workspace's API keys, newest first.
func (s *Identity) ListTokens(ctx context.Context, c Caller, o ListOptions) (page []Token, next string, err error) {
	return nil, "", &Error{Code: ENotImplemented, Message: "not implemented"}
}

// RevokeToken deletes the API key with this prefix.
func (s *Identity) RevokeToken(ctx context.Context, c Caller, prefix string) error {
	return &Error{Code: ENotImplemented, Message: "not implemented"}
}
