package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// A second person of the stack is who has a JWT with the person's address.
func TestTheTokenOfAnotherPerson(t *testing.T) {
	const key = "0123456789abcdef0123456789abcdef"
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		c := command()
		c.SetOut(&out)
		c.SetArgs(append([]string{"token"}, args...))
		err := c.Execute()
		return strings.TrimSpace(out.String()), err
	}
	t.Setenv(stack.JWTKey, "")
	if _, err := run("--email", "grace@example.com"); err == nil || !strings.Contains(err.Error(), "dev.env") {
		t.Errorf("without a stack: %v", err)
	}
	t.Setenv(stack.JWTKey, key)
	if _, err := run(); err == nil || !strings.Contains(err.Error(), "--email") {
		t.Errorf("without an address: %v", err)
	}
	text, err := run("--email", "grace@example.com")
	if err != nil {
		t.Fatal(err)
	}
	claims := jwt.MapClaims{}
	if _, err := jwt.ParseWithClaims(text, claims, func(*jwt.Token) (any, error) { return []byte(key), nil }); err != nil {
		t.Fatal(err)
	}
	if claims["email"] != "grace@example.com" || claims["sub"] != "grace@example.com" {
		t.Errorf("%v", claims)
	}
}
