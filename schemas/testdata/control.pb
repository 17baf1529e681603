
 a5bf087c5a1f7c8f498f8bd3f9f083f0copieracme"2*fixity08BannJ	asked forRï˜àÏ€­âZö˜àÏÀ±Ÿ