/** The caller's token: kept for this tab only, never in an address. */

const KEY = "lockstep.token";

export function token(): string | null {
  return sessionStorage.getItem(KEY);
}

export function hasToken(): boolean {
  return token() !== null;
}

export function logIn(secret: string): void {
  sessionStorage.setItem(KEY, secret);
}

export function logOut(): void {
  sessionStorage.removeItem(KEY);
}
