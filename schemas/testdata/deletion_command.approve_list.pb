
 9b277419c5537aaaab1903f692298f18acmephotos22: c06e8a2ead46bc448510ef7d394bf88dB db54f908f9372f96125d4984c0832aaerßô‡œÄ— zeve@example.orgäbrake-3f1c0a9e77b2